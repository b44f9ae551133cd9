"use strict";
/* One figure that fills the page, in the colours of the theme, with a switch between measures. */

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

  const draw = () => {
    root.dataset.theme = theme;
    const figure = recoloured(data.figure, theme === "dark" ? data.dark : {});
    const [trace] = figure.data;
    if (trace && data.measures[measure]) trace.values = data.measures[measure];
    if (trace && trace.type === "icicle") {
      trace.textfont = { color: trace.marker.colors.map(readableOn) };
    }
    const hasAxes = trace && trace.type !== "icicle";
    const buttons = hasAxes ? CONFIG : { ...CONFIG, modeBarButtons: [["toImage"]] };
    return Plotly.react(place, figure.data, figure.layout, buttons);
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
  root.dataset.ready = "yes";
}

start();
