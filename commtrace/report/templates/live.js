"use strict";
/* Asks for the state once a second, and shows it. Every text is placed as text. */

const PERIOD_MS = 1000;
const MANY_RANKS = 256;
const MINUTE = 60; // columns that the strip of the last minute has
const LEAST_ROW_PIXELS = 3;
// Colours of the states, by the variable that the squares have, too.
const STATE_COLOURS = {
  blocked: "kind-all_reduce", flying: "kind-reduce_scatter", free: "soft", hanging: "kind-all_gather", lost: "bad", ended: "surface",
};
const address = new URLSearchParams(window.location.search);
const place = (id) => document.getElementById(id);

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function replace(id, children) {
  place(id).replaceChildren(...children);
}

function table(id, headings, rows) {
  const head = element("thead");
  const line = element("tr");
  for (const [text, isNumber] of headings) {
    const cell = element("th", text, isNumber ? "number" : "");
    cell.scope = "col";
    line.append(cell);
  }
  head.append(line);
  const body = element("tbody");
  for (const row of rows) {
    const made = element("tr");
    row.forEach(([text, className], number) => {
      const cell = text instanceof Node ? element("td") : element("td", text);
      if (text instanceof Node) cell.append(text);
      cell.className = [className || "", headings[number][1] ? "number" : ""].join(" ").trim();
      made.append(cell);
    });
    body.append(made);
  }
  replace(id, [head, body]);
}

function bar(share, className) {
  const made = element("span", undefined, `bar-of ${className || ""}`);
  made.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return made;
}

function drawTrend(durations) {
  const svg = place("trend");
  svg.style.display = durations.length > 1 ? "block" : "none";
  place("trend-note").textContent = durations.length > 1
    ? `Duration of the last ${durations.length} steps, from left to right` : "";
  // One long step, such as the first, must not flatten all others.
  const usual = [...durations].sort((a, b) => a - b)[Math.floor(durations.length / 2)] || 0;
  const most = Math.min(Math.max(...durations, 0), 4 * usual);
  svg.setAttribute("viewBox", `0 0 ${Math.max(durations.length, 40)} 1`);
  svg.replaceChildren(...durations.map((duration, number) => {
    const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const height = most > 0 ? Math.min(duration / most, 1) : 0;
    if (duration > most) rect.setAttribute("class", "cut");
    const values = { x: number + 0.1, y: 1 - height, width: 0.8, height };
    for (const [name, value] of Object.entries(values)) rect.setAttribute(name, value);
    return rect;
  }));
}

function drawCells(cells) {
  const box = place("cells");
  box.classList.toggle("many", cells.length > MANY_RANKS);
  if (box.children.length !== cells.length) {
    replace("cells", cells.map(() => element("span", undefined, "cell")));
  }
  cells.forEach(([rank, state, text], number) => {
    const cell = box.children[number];
    const className = `cell ${state}`;
    if (cell.className !== className) cell.className = className;
    cell.dataset.text = `rank ${rank}: ${text}`;
  });
}

/** Draws what each rank was in at each second of the last minute; the newest is on the right. */
function drawMinute(columns) {
  const canvas = place("minute");
  const rows = Math.max(...columns.map((column) => column.reduce((sum, [, ranks]) => sum + ranks, 0)), 0);
  const height = Math.max(LEAST_ROW_PIXELS, Math.min(9, Math.floor(240 / Math.max(rows, 1))));
  [canvas.width, canvas.height] = [MINUTE, Math.max(rows, 1) * height];
  canvas.style.height = `${canvas.height}px`;
  canvas.hidden = !rows;
  const context = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  columns.forEach((column, second) => {
    let row = 0;
    for (const [state, ranks] of column) {
      context.fillStyle = style.getPropertyValue(`--${STATE_COLOURS[state]}`).trim();
      for (const end = row + ranks; row < end; row += 1) {
        context.fillRect(MINUTE - columns.length + second, row * height, 1, height - 1);
      }
    }
  });
}

function problem(each) {
  const box = element("div", undefined, each.is_fault ? "problem fault" : "problem");
  box.append(element("b", each.name), element("span", each.text));
  if (each.source) box.append(element("code", ` at ${each.source}`));
  return box;
}

function stack(each, isOpen) {
  const box = element("details");
  box.open = isOpen;
  box.append(element("summary", each.title));
  for (const thread of each.threads) {
    box.append(element("div", `thread ${thread.name}, most recent call last`, "muted"));
    const text = element("pre");
    for (const [where, name, isOwn] of thread.frames) {
      text.append(element("span", `${where} ${name}\n`, isOwn ? "own" : "other"));
    }
    box.append(text);
  }
  return box;
}

let shownStacks = "";

function drawStacks(stacks) {
  place("stacks-section").hidden = !stacks.length;
  const text = JSON.stringify(stacks);
  if (text === shownStacks) return; // what is open stays open
  shownStacks = text;
  replace("stacks", stacks.map((each) => stack(each, true)));
}

function show(state) {
  place("command").textContent = state.command;
  place("at").textContent = state.is_over ? `${state.at}, the run is over` : state.at;
  place("at").className = "";
  replace("numbers", state.numbers.map(([name, value, more]) => {
    const box = element("div", undefined, "tile");
    box.append(element("h2", name), element("p", value, "value"), element("p", more, "note"));
    return box;
  }));
  const [verdict, mood] = state.verdict;
  place("verdict").textContent = verdict;
  place("verdict").className = `part ${mood}`;
  drawTrend(state.durations);
  // The first fault is the verdict.
  replace("problems", state.problems.filter(({ text }) => !verdict.endsWith(text)).map(problem));
  replace("notes", state.notes.map((text) => element("p", text, "lacks")));
  place("groups-section").hidden = !state.groups.length;
  table("groups", [["Group"], ["In flight"], ["Arrived", true], ["Missing"], ["For", true]],
    state.groups.map((each) => [
      [each.name], [each.call], [each.arrived],
      [each.missing, each.is_missing ? "bad" : "dim"], [each.for],
    ]));
  drawCells(state.cells);
  drawMinute(state.minute);
  table("ranks",
    [["Rank"], ["Now"], ["For", true], ["Step", true], ["Blocked", true], ["At"]],
    state.ranks.map((each) => [
      [each.ranks], [each.now, each.state], [each.for], [each.step], [each.blocked],
      [each.source, "dim"],
    ]));
  const most = Math.max(...state.kinds.map((each) => each.bytes), 1);
  table("kinds", [["Kind"], ["Bytes", true], ["Calls", true], [""]],
    state.kinds.length ? state.kinds.map((each) => [
      [each.kind], [each.rate], [each.calls],
      [bar(each.bytes / most, `kind-${each.kind}`), "bars"],
    ]) : [[["no call ended", "dim"], [""], [""], [""]]]);
  place("stragglers-section").hidden = !state.stragglers.length;
  table("stragglers", [["Rank"], ["Share", true], [""]],
    state.stragglers.map((each) => [[each.rank], [each.text], [bar(each.share), "bars"]]));
  drawStacks(state.stacks);
}

async function refresh() {
  try {
    const answer = await fetch(`state?token=${encodeURIComponent(address.get("token") || "")}`,
      { cache: "no-store" });
    if (!answer.ok) throw new Error(`answer ${answer.status}`);
    show(await answer.json());
  } catch {
    place("at").textContent = "no answer: commtrace watch has ended";
    place("at").className = "lost";
  }
  window.setTimeout(refresh, PERIOD_MS);
}

place("cells").addEventListener("pointerover", (event) => {
  if (event.target.dataset.text) place("pointed").textContent = event.target.dataset.text;
});
place("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  root.dataset.theme = (root.dataset.theme || system) === "dark" ? "light" : "dark";
});
refresh();
