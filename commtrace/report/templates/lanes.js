"use strict";
/* Kernels on their lanes, the streams of each rank's devices: single ones if they are few in view, else
   columns of time with the share for which the lane is busy. */

const MAX_KERNEL_BARS = 4000;
// Of a lane: as many bars can be distinguished, each a few pixels wide.
const MOST_SINGLE = 600;
const MOST_COLUMNS = 400;
const LEAST_COLUMNS = 6;
const LEAST_OPACITY = 0.15;
const WORK = { compute: "computing", copy: "copying", other: "other work" };

class Lanes {
  constructor(data) {
    Object.assign(this, data);
    for (const lane of this.lanes) {
      const num = lane.starts.length;
      lane.start = new Float64Array(num);
      lane.end = new Float64Array(num);
      lane.reach = new Float64Array(num); // the latest end so far
      let at = 0;
      for (let place = 0; place < num; place += 1) {
        at += lane.starts[place];
        lane.start[place] = at;
        lane.end[place] = at + lane.lasts[place];
        lane.reach[place] = Math.max(lane.end[place], place ? lane.reach[place - 1] : -Infinity);
      }
      lane.starts = lane.lasts = null;
    }
  }

  /** The range of a lane's bars that may overlap the time window. */
  within(lane, first, last) {
    const num = lane.start.length;
    return [
      lowest(0, num, (place) => lane.reach[place] >= first),
      lowest(0, num, (place) => lane.start[place] > last),
    ];
  }

  /** The bars in a time window; kinds that are `off` are left out. */
  bars(first, last, off) {
    const ranges = this.lanes.map((lane) => this.within(lane, first, last));
    const count = ranges.reduce((sum, [from, to]) => sum + to - from, 0);
    const share = Math.floor(MAX_KERNEL_BARS / Math.max(this.lanes.length, 1));
    const most = count <= MAX_KERNEL_BARS ? MOST_SINGLE : Math.max(Math.min(share, MOST_COLUMNS), LEAST_COLUMNS);
    return this.lanes.flatMap((lane, number) => {
      const [from, to] = ranges[number];
      const isOff = this.sorts.map(({ name, is_sent: isSent }) => isSent && off.has(name));
      if (to - from <= most) return this.stored(lane, from, to, isOff);
      return this.columns(lane, from, to, isOff, Math.max(first, lane.start[0]), Math.min(last, lane.reach.at(-1)), Math.min(most, MOST_COLUMNS));
    });
  }

  stored(lane, from, to, isOff) {
    const found = [];
    for (let place = from; place < to; place += 1) {
      if (isOff[lane.sorts[place]]) continue;
      found.push({
        lane,
        sort: lane.sorts[place],
        name: lane.names[place],
        start: lane.start[place],
        end: lane.end[place],
        num: lane.nums ? lane.nums[place] : 1,
        busy: lane.busy ? lane.busy[place] : lane.end[place] - lane.start[place],
        delay: lane.delays ? lane.delays[place] : -1,
      });
    }
    return found;
  }

  /** Merges bars into columns of equal width; a kernel is counted where it begins. */
  columns(lane, from, to, isOff, first, last, num) {
    const width = (last - first) / num || 1; // kernels may have no length
    const found = Array.from({ length: num }, () => ({ num: 0, busy: 0, longest: -1 }));
    for (let place = from; place < to; place += 1) {
      if (isOff[lane.sorts[place]]) continue;
      const [start, end] = [lane.start[place], lane.end[place]];
      const density = lane.busy ? lane.busy[place] / Math.max(end - start, 1) : 1;
      const begin = Math.min(Math.floor((Math.max(start, first) - first) / width), num - 1);
      const stop = Math.min(Math.floor((Math.min(end, last) - first) / width), num - 1);
      for (let column = begin; column <= stop; column += 1) {
        const left = first + column * width;
        const inside = density * (Math.min(end, left + width) - Math.max(start, left));
        const cell = found[column];
        cell.busy += Math.max(inside, 0);
        if (inside > cell.longest) Object.assign(cell, { longest: inside, sort: lane.sorts[place], name: lane.names[place] });
      }
      if (start >= first) found[begin].num += lane.nums ? lane.nums[place] : 1;
    }
    return found
      .map((cell, column) => ({ ...cell, start: first + column * width, end: first + (column + 1) * width, lane, delay: -1 }))
      .filter((cell) => cell.sort !== undefined)
      .map((cell) => ({ ...cell, busy: Math.min(cell.busy, width), isMerged: true }));
  }

  /** The hover text of a bar: lines of escaped HTML. */
  text(bar) {
    const { name, is_sent: isSent } = this.sorts[bar.sort];
    const sort = isSent ? plain(name) : WORK[name];
    const kernel = plain(this.names[bar.name]);
    const where = `rank ${bar.lane.rank}, ${plain(bar.lane.title)}`;
    const lasts = bar.end - bar.start;
    if (!this.isMerged(bar)) {
      const launched = bar.delay < 0 ? [] : [`launched ${FORMATS.ns(bar.delay)} before`];
      return [bold(kernel), where, `${sort}, ${FORMATS.ns(lasts)}`, ...launched].join("<br>");
    }
    const begun = `${bar.num.toLocaleString("en")} kernel${bar.num === 1 ? " begins" : "s begin"} here`;
    const busy = `${(100 * this.share(bar)).toFixed(1)} % of ${FORMATS.ns(lasts)} is busy`;
    return [bold(begun), where, busy, `most of it ${sort}: ${kernel}`].join("<br>");
  }

  isMerged(bar) {
    return Boolean(bar.isMerged || bar.lane.nums);
  }

  share(bar) {
    return Math.min(bar.busy / Math.max(bar.end - bar.start, 1), 1);
  }
}
