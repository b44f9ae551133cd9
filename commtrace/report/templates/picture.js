"use strict";
/* A single figure that fills the page, in the theme's colours, with a switch between measures. */

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
  let level = data.figure.data[0]?.level ?? "0";

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
    if (trace && trace.type === "icicle") {
      trace.textinfo = "text";
      trace.text = fittingNames(trace.labels, trace.values, trace.values[Number(level)], drawnWidth);
      trace.level = level;
    }
    // plotly's own resizing ignores the height of the legend's rows.
    const config = { ...CONFIG, responsive: false };
    await drawWithLegend(place, figure.data, layout, config);
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
  keepLabelBeside(place);
  place.on("plotly_icicleclick", ({ nextLevel }) => {
    level = String(nextLevel ?? "0");
    draw();
    return false; // names are fitted to the blocks that are then drawn
  });
  for (const format of ["svg", "png"]) {
    document.getElementById(`save-${format}`).addEventListener("click", () => {
      const { clientWidth: width, clientHeight: height } = place;
      Plotly.downloadImage(place, { format, width, height, filename: document.title.split(" ")[0] });
    });
  }
  // The observer reports once at the start, which covers a resize while the figure was drawn.
  new ResizeObserver(() => {
    if (place.clientWidth !== drawnWidth) draw();
  }).observe(place);
  root.dataset.ready = "yes";
}

start();
