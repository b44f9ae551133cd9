"use strict";
/* Shares of time of a run whose calls are not all on the page, in columns of time; from
   commtrace.report.overview. Where a column is wider than what is asked for, its share holds for all
   of its time. */

class Overview {
  constructor(head, bytes) {
    Object.assign(this, head);
    const num = bytes.length >> 1; // the lower bytes of all numbers precede the upper ones
    this.values = new Uint16Array(num);
    for (let place = 0; place < num; place += 1) this.values[place] = bytes[place] | (bytes[num + place] << 8);
  }

  /** The columns that overlap a time range, as fractions of their number: [from, to). */
  columns(first, last) {
    const at = (ns) => Math.min(Math.max((ns - this.first_ns) / this.column_ns, 0), this.num_columns);
    return [at(first), at(last)];
  }

  /** About how many calls begin in a time range, of the kinds that are not `off`. */
  count(first, last, off) {
    const [from, to] = this.columns(first, last);
    let sum = 0;
    for (let column = Math.floor(from); column < to; column += 1) {
      const part = Math.min(to, column + 1) - Math.max(from, column);
      this.kinds.forEach((kind, place) => { if (!off.has(kind)) sum += part * this.num_begun[column][place]; });
    }
    return Math.round(sum);
  }

  /** Blocked nanoseconds per rank, column, kind and part (transfer before wait), as of `Spans`. */
  shares(numRanks, first, last, numColumns, off) {
    const numParts = 2 * this.kinds.length;
    const width = (last - first) / numColumns;
    const isDrawn = this.kinds.flatMap((kind) => [!off.has(kind), !off.has(kind)]);
    const ranges = Array.from({ length: numColumns }, (_, column) => (
      this.columns(first + column * width, first + (column + 1) * width)));
    return Array.from({ length: numRanks }, (_, rank) => {
      const sum = new Float32Array(numColumns * numParts);
      ranges.forEach(([from, to], column) => {
        for (let own = Math.floor(from); own < to; own += 1) {
          const ns = (Math.min(to, own + 1) - Math.max(from, own)) * this.column_ns / this.unit;
          const begin = (rank * this.num_columns + own) * numParts;
          for (let part = 0; part < numParts; part += 1) {
            if (isDrawn[part]) sum[column * numParts + part] += ns * this.values[begin + part];
          }
        }
      });
      return sum;
    });
  }
}
