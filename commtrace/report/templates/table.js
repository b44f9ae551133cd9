"use strict";
/* A table with sorting, search and, for modules, folding. Rows are indices into columns of data. */

const ROWS_AT_ONCE = 100;
const FOLD_ABOVE = 60;
const SORTED_AT_ONCE = 50_000;
const NARROW_WINDOW = window.matchMedia("(max-width: 640px)");
const MOST_NARROW = 3; // columns that a narrow window has room for
// Columns that matter most, the first of them first, besides the one that names the row.
const FIRST_COLUMNS = [
  "share_of_steps", "share", "saved_ns", "delay_ns", "could_hide_ns", "wait_ns", "exposed_ns", "blocked_ns", "duration_ns",
  "skew_ns", "median_slack_ns", "wire_bytes", "busbw_after_arrival_bytes_per_s", "num_calls",
];

/** A table of the page's data with `value(row, name)` for its cells. */
class Rows {
  constructor(table) {
    Object.assign(this, table);
    this.byName = new Map(table.columns.map((column) => [column.name, column]));
    this.haystacks = [];
  }

  value(row, name) {
    const data = this.data[name];
    if (data === undefined) return null;
    return data.codes ? data.strings[data.codes[row]] : data[row];
  }

  /** The searchable text of a row, in lower case. */
  haystack(row) {
    if (!this.haystacks[row]) {
      this.haystacks[row] = this.columns
        .map((column) => this.value(row, column.name))
        .filter((value) => value !== null && typeof value !== "number")
        .concat(this.shown.map((name) => formatted(this.value(row, name), this.byName.get(name))))
        .join("\n")
        .toLowerCase();
    }
    return this.haystacks[row];
  }

  matches(row, words) {
    return words.every((word) => this.haystack(row).includes(word));
  }

  /** The rows that contain every word, in order. */
  found(words) {
    const all = Array.from({ length: this.num_rows }, (_, row) => row);
    return words.length ? all.filter((row) => this.matches(row, words)) : all;
  }

  keys() {
    return undefined;
  }

  /** The index of the data row with a row's texts. */
  holder(row) {
    return row;
  }

  /** A function from rows to sort keys of a column; NaN is unknown. */
  places(name) {
    const { codes, strings } = this.data[name] || {};
    if (!codes) {
      return (row) => {
        const value = this.value(row, name);
        return value === null ? NaN : Number(value);
      };
    }
    const order = strings.map((_, code) => code).sort((a, b) => compared(strings[a], strings[b], 1));
    const place = [];
    order.forEach((code, at) => { place[code] = strings[code] === "" ? NaN : at; });
    return (row) => place[codes[this.holder(row)]];
  }
}

/** Compares two values; unknown values are last in both directions. */
function compared(a, b, sign) {
  const unknown = (value) => value === null || value === "";
  if (unknown(a) || unknown(b)) return Number(unknown(a)) - Number(unknown(b));
  if (typeof a === "string") return sign * a.localeCompare(b, "en", { numeric: true });
  return sign * (a - b);
}

class TableView {
  constructor(place, rows, known, onRow, onChange) {
    Object.assign(this, { place, rows, known, onRow, onChange });
    this.isTree = rows.byName.has("depth");
    this.sort = null;
    this.words = [];
    this.limit = ROWS_AT_ONCE;
    this.folded = new Set();
    if (this.isTree) this.plant();
    NARROW_WINDOW.addEventListener("change", () => { if (place.contains(this.table)) this.render(); });
  }

  /** For a tree: each row's parent and children. Each node precedes its children. */
  plant() {
    const path = [];
    this.parent = [];
    this.children = new Map([[-1, []]]);
    for (let row = 0; row < this.rows.num_rows; row += 1) {
      const depth = this.rows.value(row, "depth");
      this.parent[row] = depth ? path[depth - 1] : -1;
      path[depth] = row;
      this.children.get(this.parent[row]).push(row);
      this.children.set(row, []);
      if (this.rows.num_rows > FOLD_ABOVE && depth >= 2) this.folded.add(row);
    }
  }

  /** The rows in the chosen order; if there are very many, only the visible part is sorted. */
  ordered(rows) {
    if (!this.sort) return rows;
    const { name, sign } = this.sort;
    const value = (row) => this.rows.value(row, name);
    const order = (a, b) => compared(value(a), value(b), sign) || a - b;
    const keys = rows.length > SORTED_AT_ONCE ? this.rows.keys(name) : undefined;
    if (keys === undefined) return [...rows].sort(order);
    const sought = Float64Array.from(rows, (row) => (keys[row] < 0 ? Infinity : sign * keys[row]));
    // A typed array sorts numbers by value, without a function to compare them.
    const last = sought.slice().sort()[Math.min(this.limit, sought.length) - 1];
    const before = [];
    const equal = [];
    for (let place = 0; place < rows.length; place += 1) {
      if (sought[place] < last) before.push(rows[place]);
      else if (sought[place] === last && equal.length < this.limit) equal.push(rows[place]);
    }
    return before.sort(order).concat(equal);
  }

  /** The rows to show, in order; in a tree, ancestors of matches are included and folded rows are not. */
  visible() {
    const found = this.rows.found(this.words);
    this.numFound = found.length;
    if (!this.isTree) return this.ordered(found);
    const kept = new Set();
    for (let row of found) {
      while (row >= 0 && !kept.has(row)) {
        kept.add(row);
        row = this.parent[row];
      }
    }
    const shown = [];
    const walk = (rows) => {
      for (const row of this.ordered(rows.filter((each) => kept.has(each)))) {
        shown.push(row);
        if (this.words.length || !this.folded.has(row)) walk(this.children.get(row));
      }
    };
    walk(this.children.get(-1));
    this.numFound = shown.length;
    return shown;
  }

  /** All matching rows, in order, including folded ones and those beyond the display limit. */
  rowsInOrder() {
    const found = this.rows.found(this.words);
    if (!this.sort || this.isTree) return found;
    const { name, sign } = this.sort;
    const places = this.rows.places(name);
    const key = (row) => (Number.isNaN(places(row)) ? Infinity : sign * places(row));
    const keys = new Map(Array.from(found, (row) => [row, key(row)]));
    return Array.from(found).sort((a, b) => (keys.get(a) === keys.get(b) ? a - b : keys.get(a) - keys.get(b)));
  }

  search(text) {
    this.words = text.toLowerCase().split(/\s+/).filter(Boolean);
    this.limit = ROWS_AT_ONCE;
    this.render();
  }

  sortBy(name) {
    const text = this.rows.byName.get(name).type === "str";
    const first = text ? 1 : -1;
    const again = this.sort && this.sort.name === name;
    this.sort = again && this.sort.sign !== first ? null : { name, sign: again ? -first : first };
    this.limit = ROWS_AT_ONCE;
    this.render();
    this.place.querySelector(`th[data-name="${name}"] button`).focus();
    this.onChange("sort");
  }

  /** The order as text: a column's name, with a leading minus if descending. */
  sortText() {
    return this.sort ? `${this.sort.sign < 0 ? "-" : ""}${this.sort.name}` : "";
  }

  setSort(text) {
    const name = text.replace(/^-/, "");
    this.sort = text && this.rows.shown.includes(name) ? { name, sign: text === name ? 1 : -1 } : null;
    this.limit = ROWS_AT_ONCE;
    this.render();
  }

  render() {
    const visible = this.visible();
    const rows = Array.from(visible.slice(0, this.limit));
    this.table = element("table", "", this.head(), this.body(rows));
    this.place.replaceChildren(this.table, ...this.below(this.numFound));
  }

  /** The columns that are shown: on a narrow window, those that matter most, until all are asked for. */
  columns() {
    const { shown } = this.rows;
    this.isCut = NARROW_WINDOW.matches && !this.isWide && shown.length > MOST_NARROW;
    if (!this.isCut) return shown;
    const first = FIRST_COLUMNS.filter((name) => shown.slice(1).includes(name));
    const kept = new Set([...first, ...shown.slice(1)].slice(0, MOST_NARROW - 1).concat(shown[0]));
    return shown.filter((name) => kept.has(name));
  }

  head() {
    const cells = this.columns().map((name) => {
      const column = this.rows.byName.get(name);
      const button = element("button", "", column.title);
      button.type = "button";
      button.title = column.meaning;
      button.addEventListener("click", () => this.sortBy(name));
      const cell = element("th", column.type === "str" ? "" : "number", button);
      cell.dataset.name = name;
      cell.scope = "col";
      if (this.sort && this.sort.name === name) {
        cell.setAttribute("aria-sort", this.sort.sign > 0 ? "ascending" : "descending");
      }
      return cell;
    });
    return element("thead", "", element("tr", "", ...cells));
  }

  body(rows) {
    const body = element("tbody", "", ...rows.map((row) => this.line(row)));
    if (this.onRow && rows.length) body.firstChild.tabIndex = 0;
    body.addEventListener("keydown", (event) => roveRows(event, [...body.children]));
    return body;
  }

  line(row) {
    const line = element("tr", this.onRow ? "open" : "");
    for (const name of this.columns()) line.append(this.cell(row, name));
    if (this.onRow) {
      line.tabIndex = -1; // one of them is reached by Tab, the others from there
      line.addEventListener("click", () => this.onRow(row));
      line.addEventListener("keydown", (event) => {
        if (event.key !== "Enter") return;
        event.preventDefault(); // or the key would go on to press what the story puts in focus
        this.onRow(row);
      });
    }
    return line;
  }

  cell(row, name) {
    const column = this.rows.byName.get(name);
    const value = this.rows.value(row, name);
    const cell = element("td", column.type === "str" ? "text" : "number");
    if ((name === "share" || name === "share_of_steps") && value !== null) {
      cell.append(this.meter(value, formatted(value, column)));
    } else if (name === "module" && this.isTree) {
      cell.append(this.branch(row));
    } else if (name === "source_file" && value) {
      const file = value.split("/").slice(-1)[0];
      cell.append(visible(`${file}:${this.rows.value(row, "source_line")}`));
      cell.title = visible(value);
    } else {
      if ((name === "kind" || name === "phase") && value) {
        const colour = colourClass(name, value, this.known[`${name}s`]);
        cell.append(element("i", `swatch ${colour}`));
      }
      cell.append(formatted(value, column));
      if (column.type === "str") cell.title = visible(value || "");
      if (value === null || value === "" || value === 0) cell.classList.add("none");
    }
    return cell;
  }

  meter(value, text) {
    const full = element("i");
    full.style.width = `${100 * Math.min(Math.max(value, 0), 1)}%`;
    return element("div", "share", text, element("span", "", full));
  }

  /** A module's name, indented by its depth, with a button that folds its children. */
  branch(row) {
    const path = this.rows.value(row, "module");
    const name = this.rows.value(row, "name");
    const depth = this.rows.value(row, "depth");
    const branch = element("span", "level");
    branch.style.paddingLeft = `${18 + 16 * depth}px`;
    branch.title = visible(path);
    if (this.children.get(row).length && !this.words.length) {
      const folded = this.folded.has(row);
      const twist = element("button", "twist", folded ? "▸" : "▾");
      twist.type = "button";
      twist.setAttribute("aria-expanded", String(!folded));
      twist.setAttribute("aria-label", visible(`What is inside ${path || "the run"}`));
      twist.addEventListener("click", (event) => {
        event.stopPropagation();
        if (!this.folded.delete(row)) this.folded.add(row);
        this.render();
      });
      branch.append(twist);
    }
    if (/^\d+$/.test(name)) {
      const before = path.split(".").slice(-2, -1)[0];
      branch.append(element("span", "faint", before ? `${before}.` : ""), visible(name));
    } else {
      branch.append(path === "" ? "whole run" : visible(name));
    }
    return branch;
  }

  below(found) {
    const lines = [];
    if (this.isCut) {
      const all = element("button", "quiet small", `All ${this.rows.shown.length} columns`);
      all.type = "button";
      all.addEventListener("click", () => {
        this.isWide = true;
        this.render();
      });
      lines.push(element("div", "more", all));
    }
    if (!found) {
      const missing = this.rows.notices.join(" ") || "The trace has no data for this table.";
      const text = this.words.length ? "No row contains all of these words." : missing;
      lines.push(element("p", "empty", text));
    }
    if (found > this.limit) {
      const more = element("button", "quiet", "Show more");
      more.type = "button";
      more.addEventListener("click", () => {
        this.limit *= 4;
        this.render();
      });
      const shown = this.limit.toLocaleString("en");
      const all = found.toLocaleString("en");
      lines.push(element("div", "more", `${shown} of ${all} rows`, more));
    }
    if (this.rows.num_left_out) {
      const left = this.rows.num_left_out.toLocaleString("en");
      const held = this.rows.num_rows.toLocaleString("en");
      const text = this.rows.name === "calls" ? `${left} more calls are not on this page.`
        : `The page shows the first ${held} rows; ${left} more: commtrace table ${this.rows.name}.`;
      lines.push(element("div", "more", text));
    }
    return lines;
  }
}
