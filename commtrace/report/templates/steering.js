"use strict";
/* Keys and wheel of the timeline, as in Perfetto, and navigation from call to call. */

const WHEEL_ZOOM = 0.0025; // of a pixel that the wheel turns
const ZOOM = 0.7;
const PAN = 0.2;

class Steering {
  constructor(timeline, keys, onOpen) {
    Object.assign(this, { timeline, onOpen });
    this.place = timeline.place;
    this.status = document.getElementById("timeline-status");
    this.place.tabIndex = 0;
    this.place.setAttribute("role", "application");
    this.place.setAttribute("aria-label", "Timeline of the calls of each rank");
    this.place.setAttribute("aria-describedby", "timeline-status");
    this.place.addEventListener("focus", () => this.describe());
    this.place.addEventListener("blur", () => { this.status.textContent = ""; });
    // Not passive, since `turn` keeps the browser from zooming or moving the page.
    this.place.addEventListener("wheel", (event) => this.turn(event), { passive: false });
    this.place.addEventListener("mousemove", (event) => { this.pointed = event.clientX; }, { passive: true });
    keys.add("Timeline", this.place, [
      { keys: ["w", "W", "+", "="], shown: ["w", "+"], does: "zoom in", act: () => this.zoom(ZOOM) },
      { keys: ["s", "S", "-", "_"], shown: ["s", "-"], does: "zoom out", act: () => this.zoom(1 / ZOOM) },
      { keys: ["a", "A"], shown: ["a"], does: "go to earlier times", act: () => this.pan(-PAN) },
      { keys: ["d", "D"], shown: ["d"], does: "go to later times", act: () => this.pan(PAN) },
      { keys: ["ArrowLeft"], does: "the same as a, where the timeline has the focus", act: () => this.pan(-PAN), isLocal: true },
      { keys: ["ArrowRight"], does: "the same as d", act: () => this.pan(PAN), isLocal: true },
      { keys: ["f", "F"], shown: ["f"], does: "fit the selected call, or else the whole run", act: () => this.fit() },
      { keys: [".", ","], does: "select the next or the last call of the rank", act: (event) => this.step(event.key === "." ? 1 : -1) },
      { keys: ["ArrowDown", "ArrowUp"], does: "select the call of another rank at that time", act: (event) => this.cross(event.key === "ArrowDown" ? 1 : -1), isLocal: true },
      { keys: ["c", "C"], shown: ["c"], does: "show or hide the critical path", act: () => this.timeline.path.toggle() },
      { keys: ["]", "["], does: "follow the critical path, or go back on it", act: (event) => this.timeline.path.step(event.key === "]" ? 1 : -1) },
      { keys: ["Enter"], does: "open the selected call", act: () => this.open(), isLocal: true },
      { keys: ["Ctrl + wheel"], does: "zoom at the pointer", act: () => false },
      { keys: ["Shift + wheel"], does: "move", act: () => false },
    ]);
  }

  /** The time at a pointer; undefined outside the plot. */
  instant(x) {
    const plot = this.place.querySelector(".nsewdrag")?.getBoundingClientRect();
    if (!plot || !plot.width || x < plot.left || x > plot.right) return undefined;
    const [first, last] = this.timeline.range;
    return first + ((x - plot.left) / plot.width) * (last - first);
  }

  turn(event) {
    const { x, y } = wheelPixels(event);
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.timeline.zoomBy(Math.exp(WHEEL_ZOOM * y), this.instant(event.clientX));
    } else if (event.shiftKey || Math.abs(x) > Math.abs(y)) {
      event.preventDefault();
      this.timeline.panBy((x || y) / this.place.clientWidth);
    }
  }

  /** Zooms around the pointer, as Perfetto does, or else around the selected call. */
  zoom(factor) {
    const isOver = this.place.matches(":hover");
    this.timeline.zoomBy(factor, isOver ? this.instant(this.pointed) : this.selectedInstant());
    this.describe();
  }

  /** The middle of the selected call, if it is in view. */
  selectedInstant() {
    const { timeline } = this;
    if (timeline.selected < 0) return undefined;
    const { issue_ns: start, end_ns: end } = timeline.calls.own;
    const at = timeline.ms((start[timeline.selected] + end[timeline.selected]) / 2);
    const [first, last] = timeline.range;
    return at >= first && at <= last ? at : undefined;
  }

  pan(part) {
    this.timeline.panBy(part);
    this.describe();
  }

  fit() {
    this.timeline.fit();
    this.describe();
  }

  /** The drawn calls of a rank, by time. */
  rowsOf(rank) {
    const { spans, calls } = this.timeline;
    const isDrawn = spans.drawn();
    const { from = 0, to = 0 } = calls.byRank.get(rank) || {};
    const rows = [];
    for (let row = from; row < to; row += 1) {
      if (calls.own.issue_ns[row] >= 0 && isDrawn[calls.site[row]]) rows.push(row);
    }
    return rows;
  }

  /** The first call of a rank that begins in view. */
  firstSeen(rank) {
    const { timeline } = this;
    const begin = timeline.ns(timeline.range[0]);
    return this.rowsOf(rank).find((row) => timeline.calls.own.issue_ns[row] >= begin);
  }

  step(by) {
    const { timeline } = this;
    const { rank } = timeline.calls.own;
    if (timeline.selected < 0) return this.select(this.firstSeen(timeline.data.ranks[0]));
    const rows = this.rowsOf(rank[timeline.selected]);
    return this.select(rows[rows.indexOf(timeline.selected) + by]);
  }

  cross(by) {
    const { timeline } = this;
    const { rank, issue_ns: start } = timeline.calls.own;
    if (timeline.selected < 0) return false;
    const { ranks } = timeline.data;
    const other = ranks[ranks.indexOf(rank[timeline.selected]) + by];
    const away = (row) => Math.abs(start[row] - start[timeline.selected]);
    const rows = other === undefined ? [] : this.rowsOf(other);
    return this.select(rows.reduce((best, row) => (best === undefined || away(row) < away(best) ? row : best), undefined));
  }

  select(row) {
    if (row === undefined) return;
    const { timeline } = this;
    timeline.select(row);
    const at = timeline.ms(timeline.calls.own.issue_ns[row]);
    const [first, last] = timeline.range;
    if (at < first || at > last) timeline.panBy((at - (first + last) / 2) / (last - first));
    this.describe();
  }

  open() {
    if (this.timeline.selected < 0) return false;
    return this.onOpen(this.timeline.selected);
  }

  /** Updates the description of the focused item for screen readers. */
  describe() {
    if (!this.place.contains(document.activeElement) && this.timeline.selected < 0) return;
    const { timeline } = this;
    const [from, to] = timeline.range.map((edge) => FORMATS.ns(Math.max(edge, 0) * MS));
    const row = timeline.selected;
    const view = `${from} to ${to}`;
    this.status.textContent = row < 0 ? `Timeline, ${view}. Press . for a call, ? for all keys.`
      : visible(`${callName(timeline.calls, row)}, ${view}. Enter opens it.`);
  }
}

/** A short description of a call. */
function callName(calls, row) {
  const value = (name) => calls.value(row, name);
  const blocked = value("blocked_ns") === null ? "" : `, blocked ${FORMATS.ns(value("blocked_ns"))}`;
  const where = value("module") ? `, in ${value("module")}` : "";
  return `${value("kind")} on rank ${value("rank")}, call ${value("id")}${where}${blocked}`;
}
