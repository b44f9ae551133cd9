"use strict";
/* The critical path on the timeline: a line over the rows of ranks, followed from stretch to stretch.
   Work of hosts is drawn below the calls of a rank, and work of devices below its lanes. */

const PATH_HEIGHT = 0.12; // of a rank's calls
const CHOSEN_HEIGHT = 2; // times the height of others
const MERGED_OPACITY = 0.45;
const LEAST_SHARE = 0.001;

class CriticalPath {
  /** `rows` is the table critical_path; the path is shown while `at` is one of its rows. */
  constructor(rows, calls, timeline, onOpen, onChange) {
    Object.assign(this, { rows, calls, timeline, onOpen, onChange, at: -1 });
    timeline.path = this;
    this.bar = document.getElementById("path");
    this.button = document.getElementById("path-toggle");
    this.button.hidden = !rows.num_rows;
    this.button.addEventListener("click", () => this.toggle());
    document.getElementById("path-before").addEventListener("click", () => this.step(-1));
    document.getElementById("path-after").addEventListener("click", () => this.step(1));
    document.getElementById("path-open").addEventListener("click", () => this.onOpen(this.callAt(this.at)));
    document.getElementById("path-close").addEventListener("click", () => this.close());
  }

  get isShown() {
    return this.at >= 0;
  }

  value(place, name) {
    return this.rows.value(place, name);
  }

  /** The first and the last instant of a stretch. */
  span(place) {
    const begin = this.value(place, "at_ns");
    return [begin, begin + this.value(place, "duration_ns")];
  }

  /** The row of a stretch's call; undefined if it has none on this page. */
  callAt(place) {
    const id = this.value(place, "id");
    return id === null ? undefined : this.calls.rowOf(this.value(place, "rank"), id);
  }

  toggle() {
    if (!this.rows.num_rows) return false;
    if (this.isShown) return this.close();
    return this.choose(this.longestInView());
  }

  /** The stretch that takes most of the view. */
  longestInView() {
    const [first, last] = this.timeline.range.map((edge) => this.timeline.ns(edge));
    let [best, most] = [0, -1];
    for (let place = 0; place < this.rows.num_rows; place += 1) {
      const [begin, end] = this.span(place);
      const seen = Math.min(end, last) - Math.max(begin, first);
      if (seen > most) [best, most] = [place, seen];
    }
    return best;
  }

  /** Shows the path and marks one of its stretches. */
  choose(place) {
    this.follow(place);
    this.onChange("path");
  }

  close() {
    this.choose(-1);
    return true;
  }

  /** Goes along the path, and moves the view if the stretch is not in it. */
  step(by) {
    if (!this.isShown) return this.toggle();
    const place = this.at + by;
    if (place < 0 || place >= this.rows.num_rows) return true;
    this.choose(place);
    return this.reveal();
  }

  /** Shows a stretch in the timeline, from elsewhere on the page. */
  show(place) {
    this.choose(place);
    this.timeline.bringIntoView(Math.max(this.timeline.data.ranks.indexOf(this.value(place, "rank")), 0));
    this.reveal();
  }

  reveal() {
    const [begin, end] = this.span(this.at).map((edge) => this.timeline.ms(edge));
    const [first, last] = this.timeline.range;
    if (begin >= first && end <= last) return;
    const half = Math.max((last - first) / 2, 0.75 * (end - begin));
    const middle = (begin + end) / 2;
    this.timeline.show([middle - half, middle + half]);
  }

  /** Marks a stretch without moving the view; -1 hides the path. */
  follow(place) {
    this.at = place;
    this.bar.hidden = place < 0;
    this.button.setAttribute("aria-pressed", String(place >= 0));
    if (place >= 0) this.announce();
    this.timeline.redraw();
  }

  announce() {
    document.getElementById("path-title").textContent = this.sentence(this.at);
    document.getElementById("path-place").textContent = `${this.at + 1} of ${this.rows.num_rows.toLocaleString("en")}`;
    document.getElementById("path-before").disabled = this.at === 0;
    document.getElementById("path-after").disabled = this.at === this.rows.num_rows - 1;
    document.getElementById("path-open").hidden = this.callAt(this.at) === undefined;
  }

  /** The position of the marked stretch as text, "" while the path is hidden. */
  text() {
    return this.isShown ? String(this.at + 1) : "";
  }

  parse(text) {
    if (!text) return -1;
    const place = /^\d{1,7}$/.test(text) ? Number(text) - 1 : -1;
    if (place < 0 || place >= this.rows.num_rows) throw new RangeError("the critical path has no such stretch");
    return place;
  }

  /** `transfer of all_reduce (call 12)`, in words. */
  what(place) {
    const [work, kind, op] = ["work", "kind", "op"].map((name) => this.value(place, name));
    const isHost = work === "host work";
    const call = kind ? `${isHost ? "before" : "of"} ${kind} (call ${this.value(place, "id")})` : "";
    const named = op && (isHost || !kind) ? `: ${op}` : "";
    const num = this.value(place, "num_stretches");
    const merged = num > 1 ? `${num.toLocaleString("en")} stretches, the longest ` : "";
    return `${merged}${[work, call].filter(Boolean).join(" ")}${named}`;
  }

  lines(place) {
    const from = this.value(place, "from_rank");
    const share = this.value(place, "share");
    const part = share >= LEAST_SHARE ? `, ${FORMATS[1](share)} of the critical path` : "";
    return [
      this.what(place),
      this.value(place, "module"),
      `${FORMATS.ns(this.value(place, "duration_ns"))}${part}`,
      from === null ? "" : `the path comes from rank ${from}`,
    ].filter(Boolean);
  }

  sentence(place) {
    const [what, ...rest] = this.lines(place);
    return visible([`Rank ${this.value(place, "rank")}: ${what}`, ...rest].join(", "));
  }

  hoverText(place) {
    const [what, ...rest] = this.lines(place);
    return [bold(`rank ${this.value(place, "rank")}`), plain(what), ...rest.map((line) => plain(line))].join("<br>");
  }

  /** The middle and the height of a stretch in rows; undefined if its rank is not shown. */
  row(place) {
    const row = this.timeline.data.ranks.indexOf(this.value(place, "rank"));
    if (row < 0) return undefined;
    const { calls, middle } = this.timeline.data.rows;
    const { height: lane, lanes } = this.timeline.lanes;
    if (lanes.length && this.value(place, "device")) return { y: row + 0.5 - 0.25 * lane, height: 0.3 * lane };
    return { y: row + middle + 0.38 * calls, height: PATH_HEIGHT * calls };
  }

  /** The stretches in a time window, as plotly's traces: bars, and lines where the path hops. */
  traces(first, last) {
    if (!this.isShown) return [];
    const drawn = [];
    for (let place = 0; place < this.rows.num_rows; place += 1) {
      const [start, end] = this.span(place);
      const row = end >= first && start <= last ? this.row(place) : undefined;
      if (!row) continue;
      if (place === this.at) row.height *= CHOSEN_HEIGHT;
      drawn.push({ place, start, end, ...row });
    }
    if (!drawn.length) return [];
    const { traces } = this.timeline;
    const [ink, accent, surface] = ["ink", "accent", "surface"].map((name) => traces.colour(name));
    const color = drawn.map(({ place }) => (place === this.at ? accent : ink));
    return [
      this.hops(drawn, { color: surface, width: 5 }),
      this.hops(drawn, { color: ink, width: 2 }),
      traces.bars(drawn, {
        name: "critical path",
        hovertext: drawn.map(({ place }) => this.hoverText(place)),
        customdata: drawn.map(({ place }) => place),
        marker: {
          color,
          opacity: drawn.map(({ place }) => (this.value(place, "num_stretches") > 1 ? MERGED_OPACITY : 1)),
          line: { width: 1, color },
        },
        meta: { part: "path" },
      }),
    ];
  }

  /** Lines from each stretch to the next one, if that is drawn in another place. */
  hops(drawn, line) {
    const [x, y] = [[], []];
    for (let number = 1; number < drawn.length; number += 1) {
      const [before, after] = [drawn[number - 1], drawn[number]];
      if (after.place !== before.place + 1 || after.y === before.y) continue;
      x.push(this.timeline.ms(before.end), this.timeline.ms(after.start), null);
      y.push(before.y, after.y, null);
    }
    return { type: "scatter", mode: "lines", name: "hops", x, y, line, hoverinfo: "skip", meta: { part: "hop" } };
  }
}
