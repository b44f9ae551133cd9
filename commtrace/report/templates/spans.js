"use strict";
/* Content of the timeline for a time window: single calls if they are few, else an image of the share
   of each pixel column for which calls of each kind block their rank. */

const MAX_SINGLE = 3000;
const WAIT = "wait";
const TRANSFER = "transfer";
const PALE = 0.4; // opacity of waiting, as a fraction of the kind's colour
const BLOCKING_SHARE = 0.6; // of a rank's band, where calls in the background share it
const CELLS = 320; // columns of the labels over a picture, at most
const BAND = 0.58; // the part of a rank's row that its calls take; its phase takes the row
const MOST_TEXT = 160;
const MAX_REASON_LINES = 6;

/** Escapes text so that plotly shows it literally, as commtrace.figures.label does. */
function plain(text) {
  const head = (MOST_TEXT - 1) >> 1;
  const cut = text.length > MOST_TEXT
    ? `${text.slice(0, head)}…${text.slice(head + 1 - MOST_TEXT)}`
    : text;
  const escapes = [["&", "&amp;"], ["<", "&lt;"], [">", "&gt;"], ["\n", " "], ["\r", " "]];
  return visible(escapes.reduce((safe, [from, to]) => safe.replaceAll(from, to), cut));
}

/** Bold text; written so that the page's own script contains no end tag. */
function bold(text) {
  return `<b>${text}\u003c/b>`;
}

/** The hover text of one call: lines of escaped HTML. */
function callText(calls, row) {
  const value = (name) => calls.value(row, name);
  const text = (name) => plain(formatted(value(name), calls.byName.get(name)));
  const named = (before, name) => (value(name) === null || value(name) === "" ? "" : `${before}${text(name)}`);
  const list = (...parts) => parts.filter(Boolean).join(", ");
  const reason = (value("reason") || "").match(/.{1,96}(\s|$)|.{1,96}/g) || [];
  const wait = value("wait_ns");
  let times = named("blocked ", "blocked_ns");
  if (times && value("last_rank") === value("rank")) times += "; last to arrive";
  else if (times && wait !== null) {
    times += `: waited ${text("wait_ns")} (last to arrive: rank ${text("last_rank")}), transfer ${text("transfer_ns")}`;
  }
  const line = value("source_line") === null ? "" : `:${value("source_line")}`;
  return [
    `${bold(text("kind"))} on rank ${value("rank")}, call ${value("id")}`,
    ...reason.slice(0, MAX_REASON_LINES).map(plain),
    list(
      value("module") ? text("module") + (value("module_class") ? ` (${text("module_class")})` : "")
        : "outside of modules",
      named("", "phase"),
      value("step") < 0 ? "outside of steps" : `step ${value("step")}`,
    ),
    named("for ", "op"),
    list(
      named("payload ", "payload_bytes"),
      named("sent ", "wire_bytes"),
      plain(`${value("dtype") || ""} ${value("input_shapes") || value("output_shapes") || ""}`.trim()),
      value("mesh_axis") ? named("group ", "mesh_axis") : named("group ", "group"),
      named("", "reduce_op"),
    ),
    times,
    value("source_file")
      ? plain(`${value("source_file")}${line}${value("source_function") ? ` in ${value("source_function")}` : ""}${value("via") ? `, via ${value("via")}` : ""}`)
      : "",
  ].filter(Boolean).join("<br>");
}

/** The calls of every rank by time, with queries by time window. */
class Spans {
  /** `rows` has the part of a rank's row that its calls take, and its middle; `stretches` are those
   *  of which the page has all calls, null if that is the run, whose edges are `whole`. */
  constructor(calls, ranks, rows, stretches, whole) {
    Object.assign(this, { calls, ranks, rows, stretches, whole });
    const { issue_ns: start, end_ns: end } = calls.own;
    // Ends are not in order, but the binary search of `within` needs an order.
    this.reach = new Float64Array(calls.num_rows); // the end of the longest call so far
    for (const { from, to } of calls.byRank.values()) {
      for (let row = from, reach = -Infinity; row < to; row += 1) {
        if (start[row] >= 0) reach = Math.max(reach, end[row]);
        this.reach[row] = reach;
      }
    }
    const kinds = new Set(calls.overview ? calls.overview.kinds : calls.data.kind.strings);
    this.kinds = [...kinds].sort();
    const number = new Map(this.kinds.map((kind, place) => [kind, place]));
    this.off = new Set();
    this.kindOfSite = calls.data.kind.codes.map((code) => number.get(calls.data.kind.strings[code]));
  }

  /** True if the page has all calls of a time range, as far as it is in the run. */
  hasAll(first, last) {
    if (!this.stretches) return true;
    const [from, to] = [Math.max(first, this.whole[0]), Math.min(last, this.whole[1])];
    return this.stretches.some(([begin, end]) => begin <= from && to <= end);
  }

  /** True if a time range is drawn from the overview; that has no modules to filter by. */
  isAfar(first, last) {
    return !this.calls.sites && !this.hasAll(first, last);
  }

  /** For each rank, the range of rows that may overlap the time window. */
  within(first, last) {
    const { issue_ns: start } = this.calls.own;
    return this.ranks.map((rank) => {
      const { from = 0, to = 0 } = this.calls.byRank.get(rank) || {};
      return [lowest(from, to, (row) => this.reach[row] >= first), lowest(from, to, (row) => start[row] > last)];
    });
  }

  /** A flag for each site, true if its calls are drawn: selected by kind and by the table's filter. */
  drawn() {
    const { sites } = this.calls;
    return this.kindOfSite.map((kind, site) => !this.off.has(this.kinds[kind]) && (!sites || Boolean(sites[site])));
  }

  /** One mark per call and part (transfer, wait), as rows of the kinds' traces. */
  single(first, last) {
    const isDrawn = this.drawn();
    const { site } = this.calls;
    const { issue_ns: start, end_ns: end, ready_ns: ready } = this.calls.own;
    const found = [];
    this.within(first, last).forEach(([from, to], place) => {
      const rows = [];
      for (let row = from; row < to; row += 1) {
        if (start[row] >= 0 && end[row] >= first && isDrawn[site[row]]) rows.push(row);
      }
      for (const [row, top, height] of this.stacked(rows)) {
        const band = BAND * this.rows.calls;
        const y = place + this.rows.middle + band * (top + height / 2 - 0.5);
        const mark = { row, kind: this.kind(row), y, height: band * height };
        if (ready[row] > start[row]) found.push({ ...mark, part: WAIT, start: start[row], end: ready[row] });
        found.push({ ...mark, part: TRANSFER, start: ready[row], end: end[row] });
      }
    });
    return found;
  }

  /** The top and height of each call in its rank's band; calls that do not block are below the others. */
  stacked(rows) {
    const { lane, issue_ns: start, end_ns: end, blocked_ns: blocked } = this.calls.own;
    if (rows.every((row) => lane[row] === lane[rows[0]])) return rows.map((row) => [row, 0, 1]);
    const isBehind = (row) => blocked[row] >= 0 && blocked[row] < (end[row] - start[row]) / 2;
    const kinds = [rows.filter((row) => !isBehind(row)), rows.filter(isBehind)];
    const share = kinds[0].length && kinds[1].length ? BLOCKING_SHARE : Number(kinds[0].length > 0);
    return kinds.flatMap((of, place) => {
      const lanes = [...new Set(of.map((row) => lane[row]))].sort((a, b) => a - b);
      const height = (place ? 1 - share : share) / lanes.length;
      return of.map((row) => [row, (place ? share : 0) + height * lanes.indexOf(lane[row]), height]);
    });
  }

  kind(row) {
    return this.kinds[this.kindOfSite[this.calls.site[row]]];
  }

  /** The number of drawn calls that may overlap the time window. */
  count(first, last) {
    if (this.isAfar(first, last)) return this.calls.overview.count(first, last, this.off);
    const isDrawn = this.drawn();
    const { site } = this.calls;
    // Without a filter, no call is looked at.
    const isAll = isDrawn.every(Boolean);
    let sum = 0;
    for (const [from, to] of this.within(first, last)) {
      if (isAll) sum += Math.max(to - from, 0);
      else for (let row = from; row < to; row += 1) sum += isDrawn[site[row]];
    }
    return sum;
  }

  /** Blocked nanoseconds per rank, column, kind and part (transfer before wait). */
  shares(first, last, numColumns) {
    if (this.isAfar(first, last)) return this.calls.overview.shares(this.ranks.length, first, last, numColumns, this.off);
    const isDrawn = this.drawn();
    const { issue_ns: start, end_ns: end, ready_ns: ready, call_ns: call, blocked_ns: blocked } = this.calls.own;
    const numParts = 2 * this.kinds.length;
    const width = (last - first) / numColumns;
    const sums = this.ranks.map(() => new Float32Array(numColumns * numParts));
    const add = (sum, part, from, to) => {
      const begin = Math.max(from, first);
      const finish = Math.min(to, last);
      if (finish <= begin) return;
      const stop = Math.min(Math.floor((finish - first) / width), numColumns - 1);
      for (let column = Math.floor((begin - first) / width); column <= stop; column += 1) {
        const left = first + column * width;
        sum[column * numParts + part] += Math.min(finish, left + width) - Math.max(begin, left);
      }
    };
    this.within(first, last).forEach(([from, to], place) => {
      const sum = sums[place];
      for (let row = from; row < to; row += 1) {
        const kind = this.kindOfSite[this.calls.site[row]];
        if (start[row] < 0 || !isDrawn[this.calls.site[row]]) continue;
        const held = blocked[row] < 0 ? end[row] - start[row] : blocked[row];
        const inCall = call[row] < 0 ? held : Math.min(call[row], held);
        const pieces = [[start[row], start[row] + inCall], [end[row] - (held - inCall), end[row]]];
        for (const [begin, finish] of pieces) {
          add(sum, 2 * kind + 1, begin, Math.min(finish, ready[row]));
          add(sum, 2 * kind, Math.max(begin, ready[row]), finish);
        }
      }
    });
    return sums;
  }
}

/** Binary search: the first number in [from, to) for which `holds`, which is monotonic. */
function lowest(from, to, holds) {
  let [below, above] = [from, to];
  while (below < above) {
    const middle = (below + above) >> 1;
    if (holds(middle)) above = middle;
    else below = middle + 1;
  }
  return below;
}

/** Parses a colour `#rrggbb` into three numbers. */
function channels(colour) {
  return [1, 3, 5].map((place) => parseInt(colour.slice(place, place + 2), 16));
}

/** Renders `shares` as a PNG data URL, with a row of `rowPixels` for each rank, of which the part `ofCalls` has the calls. */
function paintedShares(sums, numColumns, columnNs, rowPixels, ofCalls, colours, surface) {
  const canvas = document.createElement("canvas");
  canvas.width = numColumns;
  canvas.height = Math.max(sums.length * rowPixels, 1);
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  const pixels = new Uint32Array(image.data.buffer); // little-endian: alpha, blue, green, red
  const back = channels(surface);
  const packed = (colour, share) => {
    const mixed = channels(colour).map((value, place) => Math.round(share * value + (1 - share) * back[place]));
    return ((255 << 24) | (mixed[2] << 16) | (mixed[1] << 8) | mixed[0]) >>> 0;
  };
  const solid = colours.flatMap((colour) => [packed(colour, 1), packed(colour, PALE)]);
  const height = Math.round(BAND * ofCalls * rowPixels);
  sums.forEach((sum, place) => {
    const bottom = place * rowPixels + Math.round((ofCalls * rowPixels + height) / 2) - 1;
    const numParts = 2 * colours.length;
    for (let column = 0; column < numColumns; column += 1) {
      const whole = Math.max(columnNs, sum.subarray(column * numParts, (column + 1) * numParts).reduce((a, b) => a + b, 0));
      let below = 0;
      for (let part = 0; part < numParts; part += 1) {
        const share = sum[column * numParts + part];
        if (!share) continue;
        const from = Math.round((below / whole) * height);
        below += share;
        const to = Math.round((below / whole) * height);
        for (let up = from; up < to; up += 1) {
          const y = bottom - up;
          pixels[y * numColumns + column] = solid[part];
        }
      }
    }
  });
  context.putImageData(image, 0, 0);
  return canvas.toDataURL("image/png");
}
