"use strict";
/* One figure that fills the page, in the colours of the theme, with a switch between measures. */

const CONFIG = {
  displaylogo: false,
  responsive: true,
  modeBarButtons: [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d", "toImage"]],
  doubleClick: "reset",
};

async function unpacked(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent.trim()), (char) =>
    char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

/** A copy in which each colour is exchanged for what `colours` has for it; texts stay. */
function recoloured(part, colours) {
  if (typeof part === "string") return colours[part] || part;
  if (Array.isArray(part)) {
    const isNumeric = typeof part[part.length - 1] === "number"; // [0.5, "#fff"] is of a scale
    return isNumeric ? part : part.map((each) => recoloured(each, colours));
  }
  if (part === null || typeof part !== "object") return part;
  const texts = ["hovertext", "labels", "text", "ids", "parents", "name"];
  return Object.fromEntries(
    Object.entries(part).map(([key, value]) => [
      key,
      texts.includes(key) ? value : recoloured(value, colours),
    ]),
  );
}

/** Black or white, whichever is easier to read on a colour; as commtrace.figures.theme has it. */
function readableOn(colour) {
  const [red, green, blue] = [1, 3, 5].map((place) => {
    const value = parseInt(colour.slice(place, place + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  const luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  return (luminance + 0.05) ** 2 > 0.05 * 1.05 ? "#000000" : "#ffffff";
}

async function start() {
  const data = JSON.parse(await unpacked("packed-data"));
  const script = document.createElement("script");
  script.textContent = await unpacked("packed-plotly");
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
