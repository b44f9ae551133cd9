"use strict";
/* The tables of the page: one is shown at a time, with its search. */

const FIRST_TABLE = "by_kind";
const LEAST_BEYOND = 12; // pixels of a table beyond the window that are worth a word

class Tables {
  constructor(data, onRow, onChange) {
    Object.assign(this, { data, onRow, onChange, views: new Map() });
    this.search = document.getElementById("search");
    this.tabs = document.getElementById("tabs");
    let [topic, row] = ["", null];
    for (const table of data.tables) {
      if (table.is_left_out || this.isEmpty(table)) continue;
      if (table.topic !== topic) {
        topic = table.topic;
        row = element("div", "row", element("span", "topic", topic));
        row.setAttribute("role", "presentation");
        row.firstChild.setAttribute("role", "presentation");
        this.tabs.append(row);
      }
      row.append(this.tab(table));
      if (table.name !== "calls") this.add(table.name, new Rows(table));
    }
    this.nameEmpty(data.tables.filter((table) => !table.is_left_out && this.isEmpty(table)));
    const place = document.getElementById("table");
    place.addEventListener("scroll", () => this.tellMore(), { passive: true });
    new ResizeObserver(() => this.tellMore()).observe(place);
    this.search.addEventListener("input", () => {
      this.view.search(this.search.value);
      this.onChange("search");
    });
    document.getElementById("csv").addEventListener("click", () => saveTable(this.view));
    this.tabs.addEventListener("keydown", (event) => this.move(event));
    this.show(FIRST_TABLE);
  }

  isEmpty(table) {
    if ([FIRST_TABLE, "calls"].includes(table.name)) return false;
    return !table.num_rows || (table.name === "by_region" && !table.data.region.strings.some(Boolean));
  }

  /** Lists the tables that have no rows, and what the trace lacks for them. */
  nameEmpty(tables) {
    const list = document.getElementById("empty-tables");
    list.hidden = !tables.length;
    list.firstElementChild.textContent = `${tables.length} table${tables.length === 1 ? " has" : "s have"} no rows in this run`;
    list.lastElementChild.append(...tables.map(({ title, question, notices }) => (
      element("div", "", element("dt", "", title), element("dd", "", notices.join(" ") || question)))));
  }

  /** Says that the table goes on to the right, while it does. */
  tellMore() {
    const { scrollWidth, clientWidth, scrollLeft } = document.getElementById("table");
    document.getElementById("table-more").hidden = scrollLeft + clientWidth >= scrollWidth - LEAST_BEYOND;
  }

  tab(table) {
    const tab = element("button", "", table.title);
    tab.type = "button";
    tab.id = `tab-${table.name}`;
    tab.setAttribute("role", "tab");
    tab.addEventListener("click", () => this.choose(table.name));
    return tab;
  }

  get view() {
    return this.views.get(this.shown);
  }

  add(name, rows) {
    const place = document.getElementById("table");
    this.views.set(name, new TableView(place, rows, this.data.known, this.onRow[name], this.onChange));
  }

  /** Shows a table on request. */
  choose(name) {
    this.show(name);
    this.onChange("table");
  }

  show(name) {
    const shown = name || FIRST_TABLE;
    if (!this.views.has(shown)) return; // the calls are the last to be unpacked
    this.shown = shown;
    for (const tab of this.tabs.querySelectorAll("button")) {
      const selected = tab.id === `tab-${shown}`;
      tab.setAttribute("aria-selected", String(selected));
      tab.tabIndex = selected ? 0 : -1;
    }
    document.getElementById("table").setAttribute("aria-labelledby", `tab-${shown}`);
    document.getElementById("table-question").textContent = this.view.rows.question;
    this.search.placeholder = shown === "calls" ? "Search, or rank:3 step:7" : "Search this table";
    this.view.search(this.search.value);
    document.getElementById("tables").dataset.shown = shown;
    this.tellMore();
  }

  /** Updates the filtered calls, if their table is shown. */
  refresh() {
    if (this.shown === "calls") this.view.search(this.search.value);
  }

  text() {
    return this.shown === FIRST_TABLE ? "" : this.shown;
  }

  parse(text) {
    return oneOf([...this.views.keys()], "a table of this page")(text);
  }

  sortText() {
    return this.view.sortText();
  }

  parseSort(text) {
    const names = new Set([...this.views.values()].flatMap(({ rows }) => rows.shown));
    return oneOf([...names].flatMap((name) => [name, `-${name}`]), "a column of a table")(text);
  }

  setSort(text) {
    this.view.setSort(text);
  }

  setSearch(text) {
    this.search.value = text;
    this.view.search(text);
  }

  move(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const names = [...this.views.keys()];
    const next = names[(names.indexOf(this.shown) + by + names.length) % names.length];
    this.choose(next);
    document.getElementById(`tab-${next}`).focus();
  }
}
