"use strict";
/* The story of one call, in a panel at the side. */

const STORY = [
  ["What", ["kind", "reduce_op", "root", "peer", "dtype", "input_shapes", "output_shapes",
    "payload_bytes", "wire_bytes", "planned_bytes", "group", "mesh_axis", "seq", "is_async"]],
  ["Where", ["rank", "step", "phase", "region", "module", "module_class", "module_call", "op",
    "native_op", "source_file", "source_function"]],
  ["Why", ["argument", "source_spec", "target_spec"]],
  ["When", ["issue_ns", "blocked_ns", "wait_ns", "transfer_ns", "last_rank", "call_ns",
    "complete_ns"]],
];

const CODE = ["source_spec", "target_spec", "native_op", "op", "module", "input_shapes",
  "output_shapes", "source_file", "source_function"];

class Detail {
  constructor(rows, zoomTo) {
    this.rows = rows;
    this.zoomTo = zoomTo;
    this.panel = document.getElementById("detail");
    document.getElementById("detail-close").addEventListener("click", () => this.close());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.close();
    });
  }

  close() {
    this.panel.hidden = true;
    if (this.before) this.before.focus();
  }

  open(row) {
    if (this.panel.hidden) this.before = document.activeElement;
    const value = (name) => this.rows.value(row, name);
    document.getElementById("detail-title").textContent =
      `${value("kind")} on rank ${value("rank")}, call ${value("id")}`;
    const parts = [];
    if (value("reason")) parts.push(element("p", "reason", value("reason")));
    for (const [title, names] of STORY) parts.push(...this.chapter(row, title, names));
    parts.push(...this.candidates(value("candidates")));
    if (this.zoomTo) parts.push(this.zoomButton(row));
    document.getElementById("detail-body").replaceChildren(...parts);
    this.panel.hidden = false;
    this.panel.scrollTop = 0;
    document.getElementById("detail-close").focus();
  }

  chapter(row, title, names) {
    const entries = names
      .filter((name) => !["", null].includes(this.rows.value(row, name)))
      .map((name) => this.entry(name, this.text(row, name)));
    return entries.length ? [element("h3", "", title), element("dl", "", ...entries)] : [];
  }

  text(row, name) {
    const column = this.rows.byName.get(name);
    const text = formatted(this.rows.value(row, name), column);
    const line = this.rows.value(row, "source_line");
    if (name === "source_file" && line !== null) return `${text}:${line}`;
    return column.unit === "ns since start" ? `${text} after the start` : text;
  }

  entry(name, text) {
    const column = this.rows.byName.get(name);
    const term = element("dt", "", column ? column.title.toLowerCase() : name);
    if (column) term.title = column.meaning;
    return element("div", "", term, element("dd", CODE.includes(name) ? "code" : "", text));
  }

  /** The layouts that were considered; the first one was chosen. */
  candidates(json) {
    let list = [];
    try {
      list = JSON.parse(json || "[]");
    } catch {
      return [];
    }
    if (!Array.isArray(list) || !list.length) return [];
    const entries = list.map(([layout, seconds], place) => {
      const cost = typeof seconds === "number" ? FORMATS.ns(1e9 * seconds) : NOT_KNOWN;
      const term = element("dt", "", place ? cost : `${cost}, chosen`);
      return element("div", "", term, element("dd", "code", String(layout)));
    });
    return [element("h3", "", "Layouts considered, by cost"), element("dl", "", ...entries)];
  }

  zoomButton(row) {
    const button = element("button", "quiet", "Show in the timeline");
    button.type = "button";
    button.addEventListener("click", () => {
      this.panel.hidden = true;
      this.zoomTo(row);
    });
    return element("div", "do", button);
  }
}
