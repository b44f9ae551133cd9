"use strict";
/* Unpacks what the page carries, then brings it to life. */

const STORED_THEME = "commtrace-theme";

/** The text of a packed element: base64 of a gzip stream. */
async function unpacked(id) {
  const holder = document.getElementById(id);
  const bytes = Uint8Array.from(atob(holder.textContent.trim()), (char) => char.charCodeAt(0));
  holder.remove();
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

/** Runs a script whose hash the page's policy names. */
function run(source) {
  const script = document.createElement("script");
  script.textContent = source;
  document.head.append(script);
}

function storedTheme() {
  try {
    return localStorage.getItem(STORED_THEME);
  } catch {
    return null;
  }
}

class Themes {
  constructor(dark) {
    this.colours = { light: {}, dark };
    this.system = window.matchMedia("(prefers-color-scheme: dark)");
    this.onChange = () => {};
    this.system.addEventListener("change", () => this.onChange());
    document.getElementById("theme").addEventListener("click", () => this.toggle());
  }

  get name() {
    return document.documentElement.dataset.theme || (this.system.matches ? "dark" : "light");
  }

  toggle() {
    const next = this.name === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem(STORED_THEME, next);
    } catch {
      // A browser that keeps nothing for local files still switches this page.
    }
    this.onChange();
  }
}

class Tables {
  constructor(data, onRow) {
    this.views = new Map();
    this.search = document.getElementById("search");
    const place = document.getElementById("table");
    const tabs = document.getElementById("tabs");
    for (const table of data.tables) {
      const rows = new Rows(table);
      const tab = element("button", "", table.title);
      tab.type = "button";
      tab.id = `tab-${table.name}`;
      tab.setAttribute("role", "tab");
      tab.addEventListener("click", () => this.show(table.name));
      tabs.append(tab);
      this.views.set(table.name, new TableView(place, rows, data.known, onRow[table.name]));
    }
    this.search.addEventListener("input", () => this.views.get(this.shown).search(this.search.value));
    tabs.addEventListener("keydown", (event) => this.move(event));
    this.show("by_kind");
  }

  show(name) {
    this.shown = name;
    const view = this.views.get(name);
    for (const tab of document.querySelectorAll("#tabs button")) {
      const selected = tab.id === `tab-${name}`;
      tab.setAttribute("aria-selected", String(selected));
      tab.tabIndex = selected ? 0 : -1;
    }
    document.getElementById("table").setAttribute("aria-labelledby", `tab-${name}`);
    document.getElementById("table-question").textContent = view.rows.question;
    view.search(this.search.value);
  }

  move(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    const names = [...this.views.keys()];
    const next = names[(names.indexOf(this.shown) + by + names.length) % names.length];
    this.show(next);
    document.getElementById(`tab-${next}`).focus();
  }
}

async function start() {
  const theme = storedTheme();
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  if (!("DecompressionStream" in window)) {
    const text = "This browser is too old to unpack the page; any of the last three years will do.";
    document.getElementById("overview").append(element("p", "notices", text));
    return;
  }
  const data = JSON.parse(await unpacked("packed-data"));
  const themes = new Themes(data.dark);
  const calls = new Rows(data.tables.find((table) => table.name === "calls"));
  const placeOf = new Map(calls.data.row.map((row, place) => [row, place]));
  const hasCalls = document.getElementById("flame-picture") !== null;
  let timeline = null;
  const detail = new Detail(calls, hasCalls ? (from, to) => timeline.zoomTo(from, to) : null);
  const openCall = (row) => {
    if (placeOf.has(row)) detail.open(placeOf.get(row));
  };
  const steps = data.tables.find((table) => table.name === "by_step").data.step;
  new Tables(data, {
    calls: (place) => detail.open(place),
    by_step: (place) => timeline && timeline.showNumber(steps[place]),
  });
  if (hasCalls) {
    await new Promise((resume) => setTimeout(resume)); // numbers and tables are painted by now
    run(await unpacked("packed-plotly"));
    const flame = new Flame(data);
    timeline = new Timeline(data, openCall);
    const draw = async () => {
      const colours = themes.colours[themes.name];
      await Promise.all([flame.draw(colours), timeline.draw(colours)]);
    };
    themes.onChange = draw;
    await draw();
  }
  document.documentElement.dataset.ready = "yes";
}

start();
