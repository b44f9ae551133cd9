"use strict";
/* The timeline of all ranks: any window of the run, at the level of detail that fits the screen. */

const BELOW_BAR = 72; // pixels that the page's top bar takes
const MS = 1e6;
const REDRAW_AFTER_MS = 60;
const EDGE = 0.02; // margin around a shown time range, as a fraction of it
const LEAST_MS = 1e-5;
const TICK_PIXELS = 96; // between two ticks, at least

class Timeline {
  constructor(data, calls, known, onCall, onChange) {
    Object.assign(this, { data, calls, known, onCall, onChange });
    this.place = document.getElementById("timeline-picture");
    const whole = data.whole_ns.map((edge) => edge - data.origin_ns);
    this.spans = new Spans(calls, data.ranks, data.rows, data.stretches, whole);
    this.lanes = new Lanes(data.kernels);
    this.traces = new Traces(this);
    this.path = null; // set by the critical path, if there is one
    this.marked = [];
    this.selected = -1;
    const [first, last] = data.whole_ns.map((edge) => edge / MS);
    this.whole = this.around(first, last);
    this.chips = [...document.querySelectorAll("#legend button")];
    for (const chip of this.chips) chip.addEventListener("click", () => this.toggle(chip.dataset.kind));
    this.setUpSteps();
    document.getElementById("whole").addEventListener("click", () => this.showStep(-1));
    document.getElementById("closer").addEventListener("click", () => this.zoomBy(1 / 3));
    document.getElementById("wider").addEventListener("click", () => this.zoomBy(3));
    new ResizeObserver(() => this.later()).observe(this.place);
  }

  /** Converts milliseconds of the axis to nanoseconds of the calls, and back. */
  ns(ms) {
    return ms * MS - this.data.origin_ns;
  }

  ms(ns) {
    return (ns + this.data.origin_ns) / MS;
  }

  around(start, end) {
    const margin = EDGE * (end - start) || 0.001;
    return [start - margin, end + margin];
  }

  /** The steps of the run, and the one that the page opens with. */
  setUpSteps() {
    const { step, start_ns: start, end_ns: end } = this.data.steps;
    this.steps = step.map((number, place) => ({
      number,
      start: this.ms(start[place]),
      end: this.ms(end[place]),
    }));
    this.box = new StepBox(this.steps, (place) => this.showStep(place));
    this.step = this.data.opening; // the one that was chosen: a double-click comes back to it
    this.opening = this.rangeOf(this.step);
    this.setRange(this.opening);
  }

  rangeOf(place) {
    return place < 0 ? this.whole : this.around(this.steps[place].start, this.steps[place].end);
  }

  showStep(place) {
    this.step = place;
    return this.show(this.rangeOf(place));
  }

  /** Shows the step of a number, and the timeline itself. */
  showNumber(number) {
    const place = this.steps.findIndex((step) => step.number === number);
    if (place < 0) return;
    this.bringIntoView(0);
    this.showStep(place);
  }

  /** Zooms around a time, by default the middle of the view. */
  zoomBy(factor, about = (this.range[0] + this.range[1]) / 2) {
    const [first, last] = this.range;
    const part = Math.max(factor, LEAST_MS / (last - first));
    const edges = [about - part * (about - first), about + part * (last - about)];
    this.show([Math.max(edges[0], this.whole[0]), Math.min(edges[1], this.whole[1])]);
  }

  /** Pans by a part of the view, within the run. */
  panBy(part) {
    const [first, last] = this.range;
    const most = this.whole[1] - last;
    const least = this.whole[0] - first;
    const by = Math.max(Math.min(part * (last - first), Math.max(most, 0)), Math.min(least, 0));
    this.show([first + by, last + by]);
  }

  /** Fits the selected call, or else the entire run. */
  fit() {
    if (this.selected < 0) return this.show(this.whole);
    return this.show(this.rangeAround([this.selected]));
  }

  /** Shows and marks some calls, with a margin around them. */
  mark(rows, marked = rows) {
    const { issue_ns: start, end_ns: end } = this.calls.own;
    const timed = rows.filter((row) => start[row] >= 0);
    this.marked = marked.filter((row) => start[row] >= 0);
    this.bringIntoView(this.data.ranks.indexOf(this.calls.own.rank[rows[0]]));
    return timed.length ? this.show(this.rangeAround(timed)) : this.redraw();
  }

  /** The range that shows some calls, with a margin around them. */
  rangeAround(rows) {
    const { issue_ns: start, end_ns: end } = this.calls.own;
    const first = Math.min(...rows.map((row) => start[row]));
    const last = Math.max(...rows.map((row) => end[row]));
    const margin = Math.max(2 * (last - first), 1000);
    return [this.ms(first - margin), this.ms(last + margin)];
  }

  /** Outlines a call, from which keys navigate; -1 for none. */
  select(row) {
    this.selected = row >= 0 && this.calls.own.issue_ns[row] >= 0 ? row : -1;
    this.redraw();
  }

  /** Scrolls to the timeline, and further down if the row of a rank would not be visible. */
  bringIntoView(row) {
    const { top, height } = this.place.getBoundingClientRect();
    const section = this.place.closest("section").getBoundingClientRect().top - BELOW_BAR;
    const ofRow = top + (height * (row + 2)) / (this.data.ranks.length + 2) - 0.8 * window.innerHeight;
    window.scrollBy({ top: Math.max(section, ofRow) });
  }

  /** Scrolls up if the rank of a call is in view, but below a line of the window. */
  bringAbove(row, line) {
    const { top, bottom, height } = this.place.getBoundingClientRect();
    const place = this.data.ranks.indexOf(this.calls.own.rank[row]);
    const below = top + (height * (place + 2)) / (this.data.ranks.length + 2);
    if (top < window.innerHeight && bottom > 0 && below > line) window.scrollBy({ top: below - line });
  }

  unmark() {
    this.setMarked([]);
  }

  setMarked(rows) {
    this.marked = rows.filter((row) => this.calls.own.issue_ns[row] >= 0);
    this.redraw();
  }

  show(range) {
    this.setRange(range);
    this.onChange("time");
  }

  setRange(range) {
    this.range = [...range];
    this.tellStep();
    this.redraw();
  }

  tellStep() {
    const [first, last] = this.range;
    this.box.follow(this.range, first <= this.whole[0] && last >= this.whole[1]);
  }

  /** The visible range in milliseconds, as text; "" for the initial range. */
  rangeText() {
    const text = (range) => range.map((edge) => String(Number(edge.toFixed(6)))).join("..");
    return text(this.range) === text(this.opening) ? "" : text(this.range);
  }

  parseRange(text) {
    if (!text) return this.opening;
    const found = text.match(/^(-?\d{1,15}(?:\.\d{1,6})?)\.\.(-?\d{1,15}(?:\.\d{1,6})?)$/);
    if (!found) throw new RangeError("it is not two times in milliseconds");
    const [first, last] = found.slice(1).map(Number);
    if (last - first < LEAST_MS) throw new RangeError("it is too short a time");
    if (last <= this.whole[0] || first >= this.whole[1]) throw new RangeError("it is not in this run");
    return [Math.max(first, this.whole[0]), Math.min(last, this.whole[1])];
  }

  toggle(kind) {
    const { off } = this.spans;
    this.setHidden(off.has(kind) ? [...off].filter((each) => each !== kind) : [...off, kind]);
    this.onChange("hide");
  }

  setHidden(kinds) {
    this.spans.off = new Set(kinds);
    for (const chip of this.chips) chip.setAttribute("aria-pressed", String(!kinds.includes(chip.dataset.kind)));
    this.redraw();
  }

  hiddenText() {
    return [...this.spans.off].sort().map((kind) => escapedName(kind)).join("/");
  }

  parseHidden(text) {
    const kinds = text ? text.split("/").map(unescapedName) : [];
    const unknown = kinds.find((kind) => !this.spans.kinds.includes(kind));
    if (unknown !== undefined) throw new RangeError("no call is of such a kind");
    return kinds;
  }

  /** The ticks of the view: in a step, of the time since it began; else, since the run began. */
  ticks() {
    const [first, last] = this.range;
    const inStep = this.box.one >= 0 && this.steps[this.box.one];
    const origin = inStep ? inStep.start : 0;
    const most = Math.max((this.place.clientWidth - this.data.layout.margin.l) / TICK_PIXELS, 2);
    const power = 10 ** Math.floor(Math.log10((last - first) / most));
    const every = power * [1, 2, 5, 10].find((part) => part * power >= (last - first) / most);
    const begin = Math.ceil((first - origin) / every);
    const number = Math.floor((last - origin) / every) - begin + 1;
    const times = Array.from({ length: Math.max(number, 0) }, (_, place) => (begin + place) * every);
    const [unit, size] = every >= 1000 ? ["s", 1000] : ["ms", 1];
    const text = (time) => {
      const sign = time < 0 ? "−" : inStep && time > 0 ? "+" : "";
      return `${sign}${(Math.abs(time) / size).toLocaleString("en", { maximumFractionDigits: 6 })} ${unit}`;
    };
    return { tickmode: "array", tickvals: times.map((time) => origin + time), ticktext: times.map(text) };
  }

  layout() {
    const layout = recoloured(this.data.layout, this.colours);
    layout.xaxis = { ...layout.xaxis, range: [...this.range], autorange: false, ...this.ticks() };
    layout.images = [];
    return layout;
  }

  /** Schedules one redraw for all simultaneous changes. */
  redraw() {
    if (!this.listening) return undefined; // it will be drawn for the first time
    this.drawing ??= Promise.resolve().then(() => {
      this.drawing = null;
      return this.draw();
    });
    return this.drawing;
  }

  async draw(colours = this.colours) {
    this.colours = colours;
    const [from, to] = this.range;
    const layout = this.layout();
    const reach = 0.5 * (to - from); // a margin on both sides, so that panning shows calls at once
    let [first, last] = [from - reach, to + reach].map((edge) => this.ns(edge));
    if (this.spans.isAfar(first, last) || this.spans.count(this.ns(from), this.ns(to)) > MAX_SINGLE / 2) {
      [first, last] = [this.ns(from), this.ns(to)];
    }
    const isAfar = this.spans.isAfar(first, last);
    this.isSingle = !isAfar && this.spans.count(first, last) <= MAX_SINGLE;
    const traces = [...this.traces.phases(first, last), ...this.traces.stepBars(), ...this.traces.stretchBars()];
    if (this.isSingle) {
      traces.push(...this.traces.singleCalls(first, last));
    } else {
      const [image, labels] = this.traces.manyCalls(this.ns(from), this.ns(to));
      layout.images.push(image);
      traces.push(labels);
    }
    const [kernels, isMerged] = this.traces.kernels(...(this.isSingle ? [first, last] : [this.ns(from), this.ns(to)]));
    traces.push(...kernels, ...(this.path?.traces(first, last) || []), ...this.traces.marks());
    document.getElementById("timeline-merged").hidden = !isMerged;
    document.getElementById("timeline-many").hidden = this.isSingle;
    document.getElementById("timeline-closer").hidden = isAfar;
    this.tellElsewhere(isAfar, from, to);
    document.getElementById("timeline-shown").textContent = this.shownText(from, to);
    // A double-click leads back to the chosen step, not to the range that plotly would reset to.
    await Plotly.react(this.place, traces, layout, { ...CONFIG, doubleClick: false });
    this.listen();
  }

  shownText(from, to) {
    const range = [this.ns(from), this.ns(to)];
    const about = this.spans.isAfar(...range) ? "about " : "";
    const count = this.spans.count(...range).toLocaleString("en");
    return `${about}${count} calls in ${FORMATS.ns((to - from) * MS)}`;
  }

  /** Names the command that writes a page with the calls in view, if this one lacks some of them. */
  tellElsewhere(isAfar, from, to) {
    const note = document.getElementById("timeline-elsewhere");
    if (!note) return;
    note.hidden = !isAfar;
    const [first, last] = [Math.max(from, this.whole[0], 0), Math.min(to, this.whole[1])];
    const edges = [first, last].map((edge) => `${Number(edge.toFixed(6))}ms`);
    document.getElementById("timeline-command").textContent =
      `${note.dataset.command} --window ${edges.join(":")} -o part.html`;
  }

  listen() {
    if (this.listening) return;
    this.listening = true;
    keepLabelBeside(this.place);
    this.place.on("plotly_click", (event) => {
      const { customdata: row, data } = event.points[0];
      if (typeof row !== "number") return;
      if (data.meta.part === "path") this.path.choose(row);
      else this.onCall(row);
    });
    this.place.on("plotly_doubleclick", () => this.showStep(this.step));
    this.place.on("plotly_relayout", (change) => {
      if (!Object.keys(change).some((key) => key.startsWith("xaxis."))) return;
      const { range } = this.place.layout.xaxis;
      if (range.every((edge, place) => edge === this.range[place])) return;
      this.range = [...range];
      this.tellStep();
      this.later();
      this.onChange("time");
    });
  }

  /** Redraws when nothing has changed for a moment. */
  later() {
    if (!this.listening) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.draw(), REDRAW_AFTER_MS);
  }
}
