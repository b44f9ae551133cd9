"use strict";
/* Unpacks what the page carries, then brings it to life. */

const STORED_THEME = "commtrace-theme";

/** Resolves once all of the page is read: the calls come last, after the script. */
function wholePage() {
  if (document.readyState !== "loading") return Promise.resolve();
  return new Promise((resume) => document.addEventListener("DOMContentLoaded", resume));
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
    Object.assign(this, { data, onRow, views: new Map() });
    this.search = document.getElementById("search");
    const tabs = document.getElementById("tabs");
    let topic = "";
    for (const table of data.tables) {
      if (table.name === "by_region" && !table.data.region.strings.some(Boolean)) continue;
      if (table.topic !== topic) {
        topic = table.topic;
        const head = element("span", "topic", topic);
        head.setAttribute("role", "presentation");
        tabs.append(head);
      }
      const tab = element("button", "", table.title);
      tab.type = "button";
      tab.id = `tab-${table.name}`;
      tab.setAttribute("role", "tab");
      tab.addEventListener("click", () => this.show(table.name));
      tabs.append(tab);
      if (table.name !== "calls") this.add(table.name, new Rows(table));
    }
    this.search.addEventListener("input", () => this.views.get(this.shown).search(this.search.value));
    tabs.addEventListener("keydown", (event) => this.move(event));
    this.show("by_kind");
  }

  add(name, rows) {
    const place = document.getElementById("table");
    this.views.set(name, new TableView(place, rows, this.data.known, this.onRow[name]));
  }

  show(name) {
    const view = this.views.get(name);
    if (!view) return; // the calls are the last to be unpacked
    this.shown = name;
    for (const tab of document.querySelectorAll("#tabs button")) {
      const selected = tab.id === `tab-${name}`;
      tab.setAttribute("aria-selected", String(selected));
      tab.tabIndex = selected ? 0 : -1;
    }
    document.getElementById("table").setAttribute("aria-labelledby", `tab-${name}`);
    document.getElementById("table-question").textContent = view.rows.question;
    this.search.placeholder = name === "calls" ? "Search, or rank:3 step:7" : "Search this table";
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
  const data = await unpacked("packed-data").json();
  const themes = new Themes(data.dark);
  let timeline = null;
  let detail = null;
  const steps = data.tables.find((table) => table.name === "by_step").data.step;
  const tables = new Tables(data, {
    calls: (row) => detail.open(row),
    by_step: (place) => timeline && timeline.showNumber(steps[place]),
  });
  const hasCalls = document.getElementById("flame-picture") !== null;
  const pictures = [];
  themes.onChange = () => Promise.all(pictures.map((each) => each.draw(themes.colours[themes.name])));
  const add = (picture) => {
    pictures.push(picture);
    return picture.draw(themes.colours[themes.name]);
  };
  if (hasCalls) {
    await new Promise((resume) => setTimeout(resume)); // numbers and tables are painted by now
    run(await unpacked("packed-plotly").text());
    await add(new Flame(data));
    await new Promise((resume) => setTimeout(resume));
  }
  document.documentElement.dataset.opened = "yes"; // what is in view is there; the calls follow
  await wholePage();
  const bytes = new Uint8Array(await unpacked("packed-calls").arrayBuffer());
  const calls = new Calls(data.tables.find((table) => table.name === "calls"), bytes);
  tables.add("calls", calls);
  detail = new Detail(calls, hasCalls ? (row) => timeline.mark([row]) : null);
  if (hasCalls) {
    timeline = new Timeline(data.timeline, calls, data.known, (row) => detail.open(row));
    new Cards(calls, timeline);
    await add(timeline);
    for (const [name, figure] of Object.entries(data.patterns)) {
      await new Promise((resume) => setTimeout(resume));
      await add(new Pattern(name, figure));
    }
  }
  document.documentElement.dataset.ready = "yes";
}

start();
