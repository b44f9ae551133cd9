"use strict";
/* Values of two runs: a heat map of divergence, a line along the program, and a module's tensors. */

const FEW = 60;
const LABEL_PIXELS = 250; // names of modules beside the map
const COLUMN_PIXELS = 44;
const MAP_MARGIN = 14; // of the card around the map
const WRONG_ONES = "wrong";
const HEADINGS = [
  ["step", "number"], ["tensor", ""], ["verdict", ""], ["distance", "number"], // as a multiple of what rounding explains
  ["first run", ""], ["norm", "number"], ["second run", ""], ["norm", "number"],
];
const CLASSES = { wrong: "wrong", "wrong if replicas": "wrong", "not comparable": "dim" };

const state = { data: null, theme: "", chosen: { row: null, column: null }, all: false, marked: -1 };

/** Places of the tensors of the chosen row and column; of none, of all that are wrong. */
function chosenPlaces() {
  const { tensors, cells } = state.data;
  const { row, column } = state.chosen;
  const places = [];
  tensors.cell.forEach((cell, place) => {
    if (row === null ? CLASSES[tensors.verdicts[tensors.verdict[place]]] === WRONG_ONES
      : cells[cell][0] === row && (column === null || cells[cell][1] === column)) places.push(place);
  });
  return places;
}

function drawTensors() {
  const { tensors, rows, columns } = state.data;
  const places = chosenPlaces();
  const { row, column } = state.chosen;
  document.getElementById("chosen").value = row === null ? WRONG_ONES : String(row);
  const wrong = places.filter((place) => CLASSES[tensors.verdicts[tensors.verdict[place]]] === WRONG_ONES).length;
  document.getElementById("shown").textContent = [
    column === null ? "" : `step ${columns[column]}:`,
    `${places.length.toLocaleString("en")} tensor${places.length === 1 ? "" : "s"}`,
    row === null ? "" : `, ${wrong.toLocaleString("en")} wrong`,
  ].join(" ").replace(" ,", ",").trim();
  const heading = element("tr", "", ...HEADINGS.map(([text, name]) => {
    const made = element("th", name, text);
    made.scope = "col";
    return made;
  }));
  const shown = state.all ? places : places.slice(0, FEW);
  const body = element("tbody", "", ...shown.map(lineOf));
  const table = document.getElementById("tensors");
  table.replaceChildren(...(places.length ? [element("thead", "", heading), body] : []));
  const rest = document.getElementById("rest");
  rest.replaceChildren();
  if (!places.length) rest.append(row === null ? "No tensor is wrong. Choose a module to see its tensors." : "No pairs.");
  if (shown.length < places.length) {
    const button = element("button", "quiet small", `Show all ${places.length.toLocaleString("en")}`);
    button.type = "button";
    button.addEventListener("click", () => {
      state.all = true;
      drawTensors();
    });
    rest.append(button);
  }
  if (row !== null) document.getElementById("tensors").setAttribute("aria-label", rows[row]);
}

function lineOf(place) {
  const { tensors } = state.data;
  const text = (name) => tensors.texts[tensors[name][place]];
  const norm = (name) => (tensors[name][place] === null ? NOT_KNOWN : String(tensors[name][place]));
  const verdict = tensors.verdicts[tensors.verdict[place]];
  const step = tensors.step[place];
  const line = element("tr", tensors.pair[place] === state.marked ? "marked" : "",
    element("td", "number", step < 0 ? "outside" : String(step)),
    element("td", "name", text("name")),
    element("td", CLASSES[verdict] || "", verdict),
    element("td", "number", text("distance")),
    element("td", "", text("left")),
    element("td", "number", norm("norm_left")),
    element("td", "", text("right")),
    element("td", "number", norm("norm_right")));
  line.cells[3].title = text("excess");
  return line;
}

/** Shows the tensors of a row, or of one of its cells; `pair` is marked. */
function choose(row, column, pair = -1) {
  state.chosen = { row, column };
  state.marked = pair;
  state.all = false;
  drawTensors();
  document.querySelector("#tensors .marked")?.scrollIntoView({ block: "nearest" });
}

async function draw() {
  const { data } = state;
  document.documentElement.dataset.theme = state.theme;
  const colours = state.theme === "dark" ? data.dark : {};
  const map = document.getElementById("map");
  const room = document.getElementById("line").clientWidth;
  const wanted = LABEL_PIXELS + COLUMN_PIXELS * data.map.layout.meta.num_columns;
  const width = Math.min(Math.max(wanted, 430), room);
  map.parentElement.style.width = `${width + MAP_MARGIN}px`; // so that tensors fit beside it
  for (const [place, figure, size] of [[map, data.map, width], [document.getElementById("line"), data.line, room]]) {
    const drawn = recoloured(figure, colours);
    await Plotly.react(place, drawn.data, { ...drawn.layout, width: size }, { ...CONFIG, responsive: false });
  }
}

function listen() {
  const { data } = state;
  for (const id of ["map", "line"]) keepLabelBeside(document.getElementById(id));
  document.getElementById("map").on("plotly_click", ({ points: [point] }) => {
    const [row, column] = data.cells[point.customdata] || [];
    if (row !== undefined) choose(row, column);
  });
  document.getElementById("line").on("plotly_click", ({ points: [point] }) => {
    const place = data.tensors.pair.indexOf(point.customdata);
    if (place >= 0) choose(...data.cells[data.tensors.cell[place]], point.customdata);
  });
  const select = document.getElementById("chosen");
  const option = (value, text) => Object.assign(element("option", "", text), { value });
  select.append(option(WRONG_ONES, "all modules: wrong ones"), ...data.rows.map((name, row) => option(String(row), name)));
  select.addEventListener("change", () => choose(select.value === WRONG_ONES ? null : Number(select.value), null));
}

async function start() {
  state.data = await unpacked("packed-data").json();
  const script = document.createElement("script");
  script.textContent = await unpacked("packed-plotly").text();
  document.head.append(script);
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  state.theme = system.matches ? "dark" : "light";
  document.getElementById("theme").addEventListener("click", () => {
    state.theme = state.theme === "dark" ? "light" : "dark";
    draw();
  });
  system.addEventListener("change", () => {
    state.theme = system.matches ? "dark" : "light";
    draw();
  });
  await draw();
  listen();
  drawTensors();
  const main = document.querySelector("main");
  let room = main.clientWidth;
  new ResizeObserver(() => {
    if (main.clientWidth === room) return;
    room = main.clientWidth;
    draw();
  }).observe(main);
  document.documentElement.dataset.ready = "yes";
}

start();
