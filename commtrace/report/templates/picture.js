"use strict";
/* A single figure that fills the page, in the theme's colours, with a switch between measures. */

const LEGEND_ROW_PIXELS = 28; // as in commtrace.figures.theme
const MOST_LEGEND_PIXELS = 1000;

/** A layout with space for a legend with more rows than its margin has; undefined if it fits. */
function withRoomForLegend(place, layout) {
  const drawn = place.querySelector(".legend .bg");
  const side = layout.legend && layout.legend.yanchor === "top" ? "b" : "t";
  const extra = drawn ? Math.ceil(drawn.getBoundingClientRect().height) - LEGEND_ROW_PIXELS : 0;
  if (extra <= 0) return undefined;
  const margin = { ...layout.margin, [side]: layout.margin[side] + extra };
  return { ...layout, margin, height: layout.height + extra };
}

async function start() {
  const data = await unpacked("packed-data").json();
  const script = document.createElement("script");
  script.textContent = await unpacked("packed-plotly").text();
  document.head.append(script);

  const root = document.documentElement;
  const place = document.getElementById("picture");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  let theme = system.matches ? "dark" : "light";
  let measure = data.chosen;
  let drawnWidth = 0;

  const draw = async () => {
    root.dataset.theme = theme;
    const figure = recoloured(data.figure, theme === "dark" ? data.dark : {});
    const [trace] = figure.data;
    if (trace && data.measures[measure]) trace.values = data.measures[measure];
    if (trace && trace.type === "icicle") {
      trace.textfont = { color: trace.marker.colors.map(readableOn) };
    }
    drawnWidth = place.clientWidth;
    const layout = { ...figure.layout, width: drawnWidth };
    const hasAxes = trace && trace.type !== "icicle";
    // plotly's own resizing ignores the height of the legend's rows.
    const config = { ...CONFIG, responsive: false };
    if (!hasAxes) config.modeBarButtons = [["toImage"]];
    if (layout.legend) layout.legend.maxheight = MOST_LEGEND_PIXELS;
    await Plotly.react(place, figure.data, layout, config);
    const wider = withRoomForLegend(place, layout);
    if (wider) await Plotly.react(place, figure.data, wider, config);
  };
  document.getElementById("theme").addEventListener("click", () => {
    theme = theme === "dark" ? "light" : "dark";
    draw();
  });
  system.addEventListener("change", () => {
    theme = system.matches ? "dark" : "light";
    draw();
  });
  const measures = document.getElementById("measures");
  if (measures) {
    measures.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      measure = button.dataset.value;
      for (const each of measures.children) {
        each.setAttribute("aria-pressed", String(each === button));
      }
      draw();
    });
  }
  await draw();
  // The observer reports once at the start, which covers a resize while the figure was drawn.
  new ResizeObserver(() => {
    if (place.clientWidth !== drawnWidth) draw();
  }).observe(place);
  root.dataset.ready = "yes";
}

start();
