"use strict";
/* The traces that plotly draws of the timeline: phases, steps, calls or their shares, kernels, and marks. */

const MAX_PHASES = 3000;
const KIND_LETTER_PIXELS = 6;

class Traces {
  constructor(timeline) {
    this.timeline = timeline;
  }

  colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  }

  kindColour(kind) {
    return this.colour(colourClass("kind", kind, this.timeline.known.kinds));
  }

  bars(spans, more) {
    return {
      type: "bar",
      orientation: "h",
      base: spans.map((span) => this.timeline.ms(span.start)),
      x: spans.map((span) => (span.end - span.start) / MS),
      y: spans.map((span) => span.y),
      width: spans.map((span) => span.height),
      hoverinfo: "text",
      ...more,
    };
  }

  /** The phases behind the calls, a trace for each, if they can be distinguished. */
  phases(first, last) {
    const { rank, phase, start_ns: start, end_ns: end } = this.timeline.data.phases;
    const { calls, middle } = this.timeline.data.rows;
    const places = new Map(this.timeline.data.ranks.map((each, place) => [each, place + middle]));
    const byPhase = new Map();
    let count = 0;
    for (let row = 0; row < rank.length; row += 1) {
      if (end[row] < first || start[row] > last) continue;
      count += 1;
      const name = phase.strings[phase.codes[row]];
      const known = this.timeline.known.phases.includes(name) ? name : "other";
      if (!byPhase.has(known)) byPhase.set(known, []);
      const text = `${bold(known)}<br>rank ${rank[row]}<br>${FORMATS.ns(end[row] - start[row])}`;
      byPhase.get(known).push({ start: start[row], end: end[row], y: places.get(rank[row]), height: 0.86 * calls, text });
    }
    if (count > MAX_PHASES) return [];
    return [...byPhase].map(([phase, spans]) => this.bars(spans, {
      name: phase,
      hovertext: spans.map((span) => span.text),
      marker: { color: this.colour(`phase-${phase}`), line: { width: 0 } },
      meta: { part: "phase" },
    }));
  }

  stepBars() {
    const [first, last] = this.timeline.range;
    const seen = this.timeline.steps.filter((step) => step.end > first && step.start < last);
    if (!seen.length) return [];
    const begin = (step) => Math.max(step.start, first); // so that its name is in what is seen of it
    const length = (step) => Math.min(step.end, last) - begin(step);
    const fits = (step) => length(step) / (last - first) > 0.04;
    return [{
      type: "bar",
      name: "steps",
      orientation: "h",
      base: seen.map(begin),
      x: seen.map(length),
      y: seen.map(() => this.timeline.data.rows.steps),
      width: this.timeline.data.rows.step_height,
      text: seen.map((step) => (fits(step) ? `step ${step.number}` : "")),
      textposition: "inside",
      insidetextanchor: "middle",
      textangle: 0,
      textfont: { size: 10, color: this.colour("muted") },
      hoverinfo: "text",
      hovertext: seen.map((step) => `${bold(`step ${step.number}`)}<br>${FORMATS.ns((step.end - step.start) * MS)}`),
      marker: { color: this.colour("soft"), line: { width: 1, color: this.colour("surface") } },
      meta: { part: "step" },
    }];
  }

  /** Lines above the ranks, where the page has single calls but does not show them all over the run. */
  stretchBars() {
    const { stretches, rows } = this.timeline.data;
    if (!stretches) return [];
    const spans = stretches.map(([start, end]) => ({ start, end, y: -0.5 - 0.07 * rows.calls, height: 0.1 * rows.calls }));
    return [this.bars(spans, {
      name: "single calls",
      hovertext: spans.map(({ start, end }) => `${bold("single calls")}<br>of ${FORMATS.ns(end - start)} are on this page`),
      marker: { color: this.colour("accent"), line: { width: 1, color: this.colour("accent") } },
      meta: { part: "stretch" },
    })];
  }

  /** A trace per kind for the transfers, and a hatched one for the waits before them. */
  singleCalls(first, last) {
    const groups = new Map();
    for (const mark of this.timeline.spans.single(first, last)) {
      const key = `${mark.kind}\n${mark.part}`;
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(mark);
    }
    const traces = [];
    for (const kind of this.timeline.spans.kinds) {
      for (const part of [TRANSFER, WAIT]) {
        const found = groups.get(`${kind}\n${part}`);
        if (!found) continue;
        const color = this.kindColour(kind);
        // A line makes calls visible that are narrower than a pixel, or have no known end.
        const marker = { color, line: { width: part === WAIT ? 0 : 1, color } };
        if (part === WAIT) {
          const bgcolor = this.colour("surface");
          marker.pattern = { shape: "/", size: 5, solidity: 0.42, fgcolor: color, bgcolor };
        }
        traces.push(this.bars(found, {
          name: plain(kind),
          ...(part === TRANSFER ? this.names(found, kind, color) : {}),
          hovertext: found.map((mark) => callText(this.timeline.calls, mark.row)),
          customdata: found.map((mark) => mark.row),
          marker,
          meta: { part, kind },
        }));
      }
    }
    return traces;
  }

  /** The kind as text in bars that are wide enough, so that kinds are told apart without colours. */
  names(marks, kind, color) {
    const [first, last] = this.timeline.range;
    const perNs = this.timeline.place.clientWidth / ((last - first) * MS);
    const wanted = KIND_LETTER_PIXELS * kind.length + BESIDE_NAME;
    const text = marks.map((mark) => ((mark.end - mark.start) * perNs >= wanted ? plain(kind) : ""));
    if (!text.some(Boolean)) return {};
    const textfont = { size: 10, color: readableOn(color) };
    return { text, textposition: "inside", insidetextanchor: "middle", textangle: 0, textfont };
  }

  /** For too many calls to draw one by one: an image of shares, with labels. */
  manyCalls(first, last) {
    const box = this.timeline.place.getBoundingClientRect();
    const { l: left, r: right } = this.timeline.data.layout.margin;
    const numColumns = Math.max(Math.min(Math.round(box.width - left - right), 1800), 100);
    const columnNs = (last - first) / numColumns;
    const sums = this.timeline.spans.shares(first, last, numColumns);
    const numRanks = this.timeline.data.ranks.length;
    const { pixels, calls } = this.timeline.data.rows;
    const rowPixels = Math.max(Math.round(pixels), 8);
    const colours = this.timeline.spans.kinds.map((kind) => this.kindColour(kind));
    const source = paintedShares(sums, numColumns, columnNs, rowPixels, calls, colours, this.colour("surface"));
    const image = {
      source,
      xref: "x",
      yref: "y",
      x: this.timeline.ms(first),
      y: -0.5,
      sizex: (last - first) / MS,
      sizey: numRanks,
      sizing: "stretch",
      layer: "above",
    };
    return [image, this.shareLabels(sums, first, columnNs, numColumns)];
  }

  shareLabels(sums, first, columnNs, numColumns) {
    const perCell = Math.ceil(numColumns / CELLS);
    const numCells = Math.ceil(numColumns / perCell);
    const numParts = 2 * this.timeline.spans.kinds.length;
    const cellNs = perCell * columnNs;
    const centres = Array.from({ length: numCells }, (_, cell) => this.timeline.ms(first + (cell + 0.5) * cellNs));
    const text = sums.map((sum, place) => centres.map((_, cell) => {
      const lines = [`${bold(`rank ${this.timeline.data.ranks[place]}`)}, ${FORMATS.ns(cellNs)}`];
      for (let part = 0; part < numParts; part += 1) {
        let held = 0;
        for (let column = cell * perCell; column < Math.min((cell + 1) * perCell, numColumns); column += 1) {
          held += sum[column * numParts + part];
        }
        if (!held) continue;
        const doing = part % 2 ? "waiting in" : "transfer of";
        lines.push(`${(100 * held / cellNs).toFixed(1)} % ${doing} ${plain(this.timeline.spans.kinds[part >> 1])}`);
      }
      return lines.length > 1 ? lines.join("<br>") : `${lines[0]}<br>not blocked`;
    }));
    const { calls } = this.timeline.data.rows;
    const { ranks } = this.timeline.data;
    const hasLanes = calls < 1;
    // Of a rank with lanes, the lower part of its row is empty.
    const rows = (filled, empty) => filled.flatMap((row) => (hasLanes ? [row, empty] : [row]));
    return {
      type: "heatmap",
      x: centres,
      y: [-0.5, ...ranks.flatMap((_, place) => (hasLanes ? [place - 0.5 + calls, place + 0.5] : [place + 0.5]))],
      z: rows(sums.map(() => centres.map(() => 0)), centres.map(() => null)),
      text: rows(text, centres.map(() => "")),
      hoverongaps: false,
      hoverinfo: "text",
      showscale: false,
      opacity: 0,
      meta: { part: "share" },
    };
  }

  /** A trace per sort of work for the kernels, and whether a bar of them stands for several. */
  kernels(first, last) {
    const { lanes, spans } = this.timeline;
    const bars = lanes.bars(first, last, spans.off);
    const traces = lanes.sorts.map(({ name, is_sent: isSent }, sort) => {
      const found = bars.filter((bar) => bar.sort === sort);
      const drawn = found.map(({ lane, start, end }) => (
        { start, end, y: lane.row + lane.offset, height: 0.82 * lanes.height }));
      return this.bars(drawn, {
        name: isSent ? plain(name) : WORK[name],
        hovertext: found.map((bar) => lanes.text(bar)),
        marker: {
          color: isSent ? this.kindColour(name) : this.colour(`device-${name}`),
          opacity: found.map((bar) => (lanes.isMerged(bar) ? Math.max(lanes.share(bar), LEAST_OPACITY) : 1)),
          line: { width: 0 },
        },
        meta: { part: "kernel", kind: isSent ? name : "" },
      });
    });
    return [traces.filter((trace) => trace.x.length), bars.some((bar) => lanes.isMerged(bar))];
  }

  /** An outline around each marked call, and a point above it, visible at any zoom. */
  marks() {
    const rows = this.timeline.selected < 0 ? this.timeline.marked : [...new Set([...this.timeline.marked, this.timeline.selected])];
    if (!rows.length) return [];
    const { issue_ns: start, end_ns: end, rank } = this.timeline.calls.own;
    const { calls, middle } = this.timeline.data.rows;
    const places = new Map(this.timeline.data.ranks.map((each, place) => [each, place + middle]));
    const spans = rows.map((row) => ({
      start: start[row],
      end: end[row],
      y: places.get(rank[row]),
      height: 0.8 * calls,
    }));
    const ink = this.colour("ink");
    return [
      this.bars(spans, {
        name: "marked",
        hoverinfo: "skip",
        marker: { color: "rgba(0,0,0,0)", line: { width: 2, color: ink } },
        meta: { part: "mark" },
      }),
      {
        type: "scatter",
        mode: "markers",
        name: "marked",
        x: spans.map((span) => this.timeline.ms((span.start + span.end) / 2)),
        y: spans.map((span) => span.y - 0.42 * calls),
        hoverinfo: "skip",
        marker: { symbol: "triangle-down", size: 9, color: ink },
        meta: { part: "mark" },
      },
    ];
  }
}
