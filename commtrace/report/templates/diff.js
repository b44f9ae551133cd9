"use strict";
/* Runs beside the baseline: tables of what changed, and flame graphs on one scale. */

const FEW = 20;
const LEAST_PART = 0.0005; // smaller changes would be displayed as +0.0 %
const LEAST_COLOURED = 0.01; // smaller changes have no colour
const NOT_KNOWN_TEXT = "not known: the runs know it for different parts of the calls";
const MOST_APART = 4; // largest ratio of totals at which graphs on a common scale are readable

/** The change from a to b as text, including "new", "gone" and unknown. */
function changeText(before, after, unit) {
  if (before === null || after === null) return NOT_KNOWN;
  if (isSame(before, after)) return "=";
  if (before === 0) return "new";
  if (after === 0) return "gone";
  const part = after / before - 1;
  const percent = Math.abs(part) >= 9.995 ? `×${(after / before).toPrecision(3)}` : `${(100 * part).toFixed(1)} %`;
  const sign = after > before ? "+" : "−";
  const amount = formatted(Math.abs(after - before), { unit });
  return `${sign}${amount} (${part > 0 && !percent.startsWith("×") ? "+" : ""}${percent.replace("-", "−")})`;
}

function isSame(before, after, part = LEAST_PART) {
  return Math.abs(after - before) <= part * Math.max(Math.abs(before), Math.abs(after));
}

/** The largest change of a row by a measure, with its sign. */
function growth(row, measure) {
  const [first, ...others] = row.values[measure];
  if (first === null) return 0;
  const changes = others.filter((each) => each !== null && !isSame(first, each)).map((each) => each - first);
  return changes.reduce((most, each) => (Math.abs(each) > Math.abs(most) ? each : most), 0);
}

/** A table: a row per place, the baseline's value, and each run's value and change. */
function fill(table, head, rows, labels, columns, measure) {
  const heading = element("tr", "", cell("th", head));
  columns(null).forEach((text) => heading.append(cell("th", text)));
  labels.forEach((label, place) => {
    const th = cell("th", label, "run");
    th.title = visible(label);
    heading.append(th);
    if (place) heading.append(cell("th", "change", "run"));
  });
  const body = element("tbody", "", ...rows.map((row) => {
    const line = element("tr", "");
    line.append(nameCell(row));
    columns(row).forEach((text) => line.append(cell("td", text)));
    const name = row.measure || measure;
    const { unit } = measures()[name];
    const values = row.values[name];
    values.forEach((value, place) => {
      line.append(cell("td", formatted(value, { unit }), "value"));
      if (!place) return;
      const text = changeText(values[0], value, unit);
      const isNoise = name === "blocked_ns" && Math.abs(value - values[0]) <= (state.data.noise[place] ?? 0);
      const isClear = !["=", NOT_KNOWN].includes(text) && !isNoise && !isSame(values[0], value, LEAST_COLOURED);
      const mood = !isClear ? "" : value > values[0] ? " worse" : " better";
      line.append(cell("td", isNoise && text !== "=" ? `${text}, noise` : text, `change${mood}`));
    });
    return line;
  }));
  table.replaceChildren(element("thead", "", heading), body);
}

function cell(tag, text, className = "") {
  const made = element(tag, className, text);
  if (tag === "th") made.scope = "col";
  return made;
}

function nameCell(row) {
  const made = cell("td", row.name || row.empty || "(outside of modules)");
  const scope = row.scope === "run" && state.hasSteps ? "outside of steps" : "";
  const detail = [row.detail, scope].filter(Boolean).join(", ");
  if (detail) made.append(element("span", "detail", detail));
  return made;
}

const state = { data: null, measure: "", theme: "", hasSteps: false, scale: null, all: new Set() };

function measures() {
  return state.data.measures;
}

function drawTotals() {
  const { totals, labels } = state.data;
  const rows = totals.flatMap((row) => Object.entries(measures()).map(([name, { title }]) => (
    { ...row, name: title, measure: name }
  )));
  fill(document.getElementById("totals"), "measure", rows, labels, () => [], "");
}

function drawTable(name) {
  const { tables, labels } = state.data;
  const changed = tables[name]
    .filter((row) => growth(row, state.measure) !== 0)
    .sort((one, other) => growth(other, state.measure) - growth(one, state.measure));
  const isUnknown = (row) => row.values[state.measure].includes(null) && !changed.includes(row);
  const unknown = tables[name].filter(isUnknown).length;
  const same = tables[name].length - changed.length - unknown;
  const shown = state.all.has(name) ? changed : mostChanged(changed);
  const table = document.getElementById(`by-${name}`);
  const rest = document.getElementById(`rest-${name}`);
  rest.replaceChildren();
  if (changed.length) fill(table, name, shown, labels, () => [], state.measure);
  else table.replaceChildren();
  const { title } = measures()[state.measure];
  const others = unknown ? ` ${unknown} not known.` : "";
  if (!changed.length) rest.append(`${title}: no difference in ${same} ${name}${same === 1 ? "" : "s"}.${others}`);
  else if (same || unknown) rest.append(`${same} the same.${others}`);
  if (shown.length < changed.length) {
    const button = element("button", "quiet small", `Show all ${changed.length}`);
    button.type = "button";
    button.addEventListener("click", () => {
      state.all.add(name);
      drawTable(name);
    });
    rest.append(button);
  }
}

/** The rows that changed most, still with the largest growth first. */
function mostChanged(rows) {
  const size = (row) => Math.abs(growth(row, state.measure));
  const kept = new Set([...rows].sort((one, other) => size(other) - size(one)).slice(0, FEW));
  return rows.filter((row) => kept.has(row));
}

async function drawFlame(place, widest) {
  const { flames, dark } = state.data;
  const { figure, values, baseline } = flames[place];
  const holder = document.getElementById(`flame-${place}`);
  const drawn = recoloured(structuredClone(figure), {});
  const [trace] = drawn.data;
  if (trace) {
    const { unit } = measures()[state.measure];
    const own = values[state.measure];
    const before = flames[0].values[state.measure];
    const change = (node) => changeOfBlock(place, node);
    trace.values = own;
    trace.domain = { x: [0, widest ? Math.max(own[0] / widest, 0.02) : 1] };
    trace.hovertext = trace.labels.map((label, node) => (
      hoverOf(trace, node, place ? before[baseline[node]] : null, change(node), unit)
    ));
    if (place) trace.marker.colors = own.map((_, node) => growthColour(change(node)));
  }
  const themed = recoloured(drawn, state.theme === "dark" ? dark : {});
  if (trace) themed.data[0].textfont = { color: themed.data[0].marker.colors.map(readableOn) };
  if (trace) {
    const width = holder.clientWidth * trace.domain.x[1];
    themed.data[0].textinfo = "text";
    themed.data[0].text = fittingNames(trace.labels, trace.values, trace.values[0], width);
  }
  const isFirst = !holder.data;
  await Plotly.react(holder, themed.data, themed.layout, CONFIG);
  if (!isFirst || !trace) return;
  keepLabelBeside(holder);
  // A block that is zoomed into has room for other names.
  holder.on("plotly_icicleclick", ({ nextLevel }) => {
    const at = Math.max(trace.ids.indexOf(String(nextLevel ?? trace.ids[0])), 0);
    const { values } = state.data.flames[place];
    const names = fittingNames(trace.labels, values[state.measure], values[state.measure][at], holder.clientWidth);
    Plotly.restyle(holder, { text: [names] });
  });
}

/** The values of a block in the baseline and in a run; null where they cover no or unequal parts of its calls. */
function changeOfBlock(place, node) {
  const { flames } = state.data;
  const { values, parts, baseline } = flames[place];
  const at = baseline[node];
  const value = values[state.measure][node];
  const part = parts[state.measure]?.[node] ?? 1;
  const wasPart = at < 0 ? 1 : flames[0].parts[state.measure]?.[at] ?? 1;
  const was = at < 0 ? 0 : flames[0].values[state.measure][at];
  if (Math.abs(part - wasPart) > LEAST_PART) return { was: wasPart ? was : null, value: part ? value : null, isKnown: false };
  return { was: wasPart ? was : null, value: part ? value : null, isKnown: part > 0 };
}

function hoverOf(trace, node, before, { was, value, isKnown }, unit) {
  const path = [];
  for (let at = node; at >= 0; at = trace.ids.indexOf(trace.parents[at])) path.unshift(trace.labels[at]);
  const lines = [`<b>${path.slice(1).join(" › ") || path[0]}</b>`, formatted(value, { unit })];
  if (before === undefined) lines.push("not in the baseline, or below 1/4000 of it");
  else if (before !== null) {
    const change = isKnown ? changeText(was, value, unit) : `change ${NOT_KNOWN_TEXT}`;
    lines.push(`baseline ${formatted(was, { unit })}: ${change}`);
  }
  return lines.join("<br>");
}

function growthColour({ was, value, isKnown }) {
  const { grew, shrank, same } = state.data.growth;
  if (!isKnown || isSame(was, value, LEAST_COLOURED)) return same;
  return value > was ? grew : shrank;
}

async function draw() {
  const { tables } = state.data;
  document.documentElement.dataset.theme = state.theme;
  drawTotals();
  Object.keys(tables).forEach(drawTable);
  await drawFlames();
}

/** Draws all flame graphs; on one scale if chosen, or if all are readable on it. */
async function drawFlames() {
  const { flames } = state.data;
  const sizes = flames.map(({ values }) => values[state.measure][0] || 0);
  const widest = Math.max(...sizes);
  const smallest = Math.min(...sizes.filter((size) => size > 0));
  const isOne = state.scale === null ? widest <= MOST_APART * smallest : state.scale;
  document.getElementById("scale").setAttribute("aria-pressed", String(isOne));
  document.getElementById("scaled").textContent = isOne
    ? "Equal widths are equal amounts in all runs."
    : "Each run fills its picture; widths compare within a run only.";
  for (let place = 0; place < flames.length; place += 1) await drawFlame(place, isOne ? widest : 0);
}

async function start() {
  state.data = await unpacked("packed-data").json();
  const script = document.createElement("script");
  script.textContent = await unpacked("packed-plotly").text();
  document.head.append(script);
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  state.theme = system.matches ? "dark" : "light";
  state.hasSteps = state.data.totals.some((row) => row.scope === "step");
  [state.measure] = Object.keys(measures());
  document.getElementById("theme").addEventListener("click", () => {
    state.theme = state.theme === "dark" ? "light" : "dark";
    draw();
  });
  system.addEventListener("change", () => {
    state.theme = system.matches ? "dark" : "light";
    draw();
  });
  document.getElementById("measures").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    state.measure = button.dataset.value;
    for (const each of button.parentElement.children) {
      each.setAttribute("aria-pressed", String(each === button));
    }
    draw();
  });
  document.getElementById("scale").addEventListener("click", (event) => {
    state.scale = event.currentTarget.getAttribute("aria-pressed") !== "true";
    drawFlames();
  });
  await draw();
  document.documentElement.dataset.ready = "yes";
}

start();
