"use strict";
/* The flame graph: its measure, the block it is zoomed into, and navigation to every block. */

const WHEEL_STEP = 60; // pixels of the wheel that lead one level in or out
const WHEEL_PAUSE_MS = 180;
const LABEL_CHARACTER_PIXELS = 8; // of a label's text, and of the room that it leaves beside it
const WHOLE = "0";
const STEP_OF_PATH = " &gt; ";

/** A label whose lines are broken at the steps of a path if they are too long. */
function wrappedPath(text, room) {
  return text.split("<br>").map((line) => {
    const lines = [""];
    line.split(STEP_OF_PATH).forEach((step, place) => {
      const longer = lines.at(-1) + (place ? STEP_OF_PATH : "") + step;
      if (place && longer.replaceAll("&gt;", ">").length > room) lines.push(`${STEP_OF_PATH.trim()} ${step}`);
      else lines[lines.length - 1] = longer;
    });
    return lines.join("<br>");
  }).join("<br>");
}

/** Marks one of a group of buttons as selected. */
function press(group, value) {
  for (const button of group.querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(button.dataset.value === value));
  }
}

class Flame {
  constructor(data, keys, onChange) {
    this.onChange = onChange;
    this.figure = data.flame;
    this.values = data.flame_values;
    this.notes = data.flame_notes;
    this.names = data.flame_names;
    this.levels = data.flame.layout.meta.phases;
    this.place = document.getElementById("flame-picture");
    this.empty = document.getElementById("flame-empty");
    this.known = document.getElementById("flame-known");
    this.status = document.getElementById("flame-status");
    this.plant();
    const measured = Object.keys(this.values).filter((name) => this.values[name][0] > 0);
    this.firstValue = measured[0] || Object.keys(this.values)[0];
    this.value = this.firstValue;
    this.level = WHOLE;
    this.focused = WHOLE;
    press(document.getElementById("flame-value"), this.value);
    this.choose("flame-value", (value) => { this.setMeasure(value); onChange("measure"); });
    this.choose("flame-phase", (phase) => this.zoomTo(this.levels[phase] || WHOLE));
    this.blocks = new Blocks(this, onChange);
    this.listenToKeys(keys);
  }

  /** The parent of each block, by number. */
  plant() {
    const [trace = { parents: [] }] = this.figure.data;
    this.parents = trace.parents;
    this.children = this.parents.map(() => []);
    this.parents.forEach((parent, id) => { if (parent !== "") this.children[Number(parent)].push(String(id)); });
  }

  choose(id, change) {
    document.getElementById(id).addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) change(button.dataset.value);
    });
  }

  /** The numbers of a block and its ancestors, outermost first, without the root. */
  pathOf(id) {
    const path = [];
    for (let at = id; at !== WHOLE && at !== "" && at !== undefined; at = this.parents[Number(at)]) path.unshift(at);
    return path;
  }

  title(id) {
    return id === WHOLE ? "all communication" : this.pathOf(id).map((each) => this.names[Number(each)]).join(" > ");
  }

  amount(id) {
    const values = this.values[this.value], ranks = this.figure.layout.meta.num_ranks;
    const share = values[0] ? `, ${(100 * values[Number(id)] / values[0]).toFixed(1)} % of all` : "";
    // As commtrace.units.text_of_mean: calls that are not whole per rank are counted in all.
    const inAll = this.value === "num_calls" && values[Number(id)] % ranks;
    const unit = { wire_bytes: "bytes", time_ns: "ns", blocked_ns: "ns", num_calls: "" }[this.value];
    const amount = FORMATS[unit](values[Number(id)] / (inAll ? 1 : ranks));
    const note = this.note(id);
    if (note.startsWith("not")) return note;
    return `${amount} ${inAll ? "in all" : "per rank"}${share}${note && `, ${note}`}`;
  }

  /** The number of calls of a block that the measure covers, in words; empty if it covers all. */
  note(id) {
    return this.notes[this.value]?.[Number(id)] ?? "";
  }

  setMeasure(value) {
    this.value = value || this.firstValue;
    press(document.getElementById("flame-value"), this.value);
    this.redraw();
  }

  measureText() {
    return this.value === this.firstValue ? "" : this.value;
  }

  zoomTo(level) {
    this.setLevel(level);
    this.onChange("block");
  }

  setLevel(level) {
    this.level = level;
    if (!this.isInside(this.focused, level)) this.focused = level;
    const phase = Object.keys(this.levels).find((name) => this.levels[name] === level);
    press(document.getElementById("flame-phase"), level === WHOLE ? "" : phase);
    this.redraw();
  }

  isInside(id, level) {
    return level === WHOLE || this.pathOf(id).includes(level);
  }

  /** The path of a block, as names. */
  pathText(id) {
    return this.pathOf(id).map((each) => escapedName(this.names[Number(each)])).join("/");
  }

  parsePath(text) {
    let at = WHOLE;
    for (const name of text ? text.split("/").map(unescapedName) : []) {
      at = (this.children[Number(at)] || []).find((child) => this.names[Number(child)] === name);
      if (at === undefined) throw new RangeError("there is no such block");
    }
    return at;
  }

  redraw() {
    if (!this.colours) return;
    this.drawing ??= Promise.resolve().then(() => {
      this.drawing = null;
      return this.draw();
    });
  }

  async draw(colours = this.colours) {
    this.colours = colours;
    const figure = recoloured(this.figure, colours);
    const [trace] = figure.data;
    const values = this.values[this.value], ranks = this.figure.layout.meta.num_ranks;
    const nothing = !trace || !values[Number(this.level)];
    this.place.hidden = nothing;
    this.empty.hidden = !nothing;
    const note = trace ? this.note(this.level) : "";
    this.empty.textContent = `Nothing to draw by this measure, which is ${note.startsWith("not") ? note : "zero"}.`;
    this.known.textContent = `This measure is ${note}; the others have no width.`;
    this.known.hidden = nothing || !note;
    this.blocks.draw(nothing);
    if (nothing) return;
    trace.values = values;
    trace.level = this.level;
    figure.layout.margin.t = this.level === WHOLE ? figure.layout.margin.b : 8 + trace.pathbar.thickness;
    trace.textinfo = "text"; // plotly measures every label, so those that cannot fit are left out
    trace.text = fittingNames(trace.labels, values, values[Number(this.level)], this.place.clientWidth);
    const room = Math.floor(this.place.clientWidth / LABEL_CHARACTER_PIXELS);
    trace.hovertext = trace.hovertext.map((text) => wrappedPath(text, room));
    trace.marker.colors = this.blocks.faded(trace.marker.colors, figure.layout.paper_bgcolor);
    trace.textfont = { color: trace.marker.colors.map(readableOn) };
    await Plotly.react(this.place, [trace], figure.layout, CONFIG);
    this.describe();
    if (this.listening) return;
    this.listening = true;
    keepLabelBeside(this.place);
    this.place.on("plotly_afterplot", () => this.describe());
    this.place.on("plotly_icicleclick", (event) => {
      this.zoomTo(String(event.nextLevel || WHOLE));
      return false; // plotly's own zoom leaves no room for the bar that leads back
    });
  }

  /** The drawn blocks by number. */
  drawn() {
    const slices = [...this.place.querySelectorAll("g.slice:not(.pathbar)")];
    return new Map(slices.map((slice) => [String(slice.__data__?.data?.data?.id ?? ""), slice]));
  }

  /** Gives each block an accessible name; one of them is reached by Tab. */
  describe() {
    const drawn = this.drawn();
    if (!drawn.has(this.focused)) this.focused = this.level;
    for (const [id, slice] of drawn) {
      slice.setAttribute("role", "button");
      slice.setAttribute("aria-label", visible(`${this.title(id)}: ${this.amount(id)}`));
      slice.setAttribute("tabindex", id === this.focused ? "0" : "-1");
    }
    if (this.wantsFocus) drawn.get(this.focused)?.focus({ preventScroll: true });
    this.wantsFocus = false;
  }

  listenToKeys(keys) {
    const go = (id) => (id === undefined ? undefined : this.focus(id));
    const beside = (by) => {
      const row = this.children[Number(this.parents[Number(this.focused)])] || [];
      return row[row.indexOf(this.focused) + by];
    };
    const zoom = (id) => { this.wantsFocus = this.place.contains(document.activeElement); this.zoomTo(id); };
    keys.add("Flame graph", this.place, [
      { keys: ["ArrowDown"], does: "go to the first block inside", act: () => go(this.children[Number(this.focused)][0]), isLocal: true },
      { keys: ["ArrowUp"], does: "go to the block around", act: () => go(this.focused === this.level ? undefined : this.parents[Number(this.focused)]), isLocal: true },
      { keys: ["ArrowLeft", "ArrowRight"], does: "go to the block beside", act: (event) => go(beside(event.key === "ArrowLeft" ? -1 : 1)), isLocal: true },
      { keys: ["Enter", " "], does: "zoom into the block", act: () => zoom(this.focused), isLocal: true },
      { keys: ["w", "W", "+", "="], shown: ["w", "+"], does: "zoom into the block that is pointed at or has the focus", act: () => zoom(this.towards(this.pointed ?? this.focused)) },
      { keys: ["s", "S", "-", "_", "Backspace"], shown: ["s", "-"], does: "zoom out of the block", act: () => zoom(this.outer()) },
      { keys: ["f", "F"], shown: ["f"], does: "show all blocks", act: () => zoom(WHOLE) },
      { keys: ["Ctrl + wheel"], does: "zoom into the block at the pointer", act: () => false },
    ]);
    this.place.addEventListener("focusin", (event) => {
      const found = [...this.drawn()].find(([, slice]) => slice === event.target);
      if (found) [this.focused] = found;
      this.status.textContent = found ? visible(`${this.title(found[0])}: ${this.amount(found[0])}. Enter zooms in, ? shows all keys.`) : "";
    });
    this.place.addEventListener("focusout", () => { this.status.textContent = ""; });
    this.place.addEventListener("mousemove", (event) => {
      const slice = event.target.closest?.("g.slice:not(.pathbar)");
      this.pointed = slice ? String(slice.__data__?.data?.data?.id ?? "") : undefined;
    }, { passive: true });
    this.place.addEventListener("mouseleave", () => { this.pointed = undefined; });
    // Not passive, since `turn` keeps the browser from zooming the page.
    this.place.addEventListener("wheel", (event) => this.turn(event), { passive: false });
  }

  focus(id) {
    const slice = this.drawn().get(id);
    if (!slice) return;
    this.drawn().get(this.focused)?.setAttribute("tabindex", "-1");
    slice.setAttribute("tabindex", "0");
    this.focused = id;
    slice.focus({ preventScroll: true });
  }

  /** The block one level below the one shown, on the path to another one. */
  towards(id) {
    const path = [WHOLE, ...this.pathOf(id)];
    const at = path.indexOf(this.level);
    return path[at + 1] ?? this.level;
  }

  outer() {
    return this.level === WHOLE ? WHOLE : this.parents[Number(this.level)];
  }

  turn(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const now = performance.now();
    if (now < (this.wheelFrom ?? 0)) return;
    this.wheelled = (this.wheelled ?? 0) + wheelPixels(event).y;
    if (Math.abs(this.wheelled) < WHEEL_STEP) return;
    const isIn = this.wheelled < 0;
    [this.wheelled, this.wheelFrom] = [0, now + WHEEL_PAUSE_MS];
    if (isIn && this.pointed !== undefined) this.zoomTo(this.towards(this.pointed));
    else if (!isIn) this.zoomTo(this.outer());
  }
}

/** A static figure. */
class Pattern {
  constructor(name, figure) {
    this.figure = figure;
    this.place = document.getElementById(`${name}-picture`);
  }

  async draw(colours) {
    const isFirst = !this.colours;
    this.colours = colours;
    const { data, layout } = forWidth(recoloured(this.figure, colours), this.place.clientWidth);
    await drawWithLegend(this.place, data, layout, CONFIG);
    if (isFirst) keepLabelBeside(this.place);
  }
}
