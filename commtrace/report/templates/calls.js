"use strict";
/* The calls of the page, unpacked from the page. Values that differ from call to call are arrays of
   numbers; the rest is in the row of the call's site. Calls are numbered by rank and time; that number
   is their row. */

const NARROW = 3; // number of bytes up to which arithmetic stays within 32-bit integers

/** Decodes `numBytes` byte planes, lowest first, into integers (zigzag encoding). */
function unfolded(bytes, offset, rows, numBytes) {
  const narrow = numBytes <= NARROW;
  const values = narrow ? new Int32Array(rows) : new Float64Array(rows);
  for (let plane = 0; plane < numBytes; plane += 1, offset += rows) {
    if (narrow) {
      const shift = 8 * plane;
      for (let row = 0; row < rows; row += 1) values[row] |= bytes[offset + row] << shift;
    } else {
      const scale = 256 ** plane;
      for (let row = 0; row < rows; row += 1) values[row] += scale * bytes[offset + row];
    }
  }
  for (let row = 0; row < rows; row += 1) {
    const folded = values[row];
    if (narrow) values[row] = (folded >>> 1) ^ -(folded & 1);
    else values[row] = folded % 2 ? -(folded + 1) / 2 : folded / 2;
  }
  return values;
}

/** Decodes the numbers of every column, encoded by commtrace.report.call_store. */
function decodedColumns(head, bytes) {
  const columns = {};
  const rows = head.num_rows;
  let offset = 0;
  for (const { name, num_bytes: numBytes, terms, in_series: inSeries, is_time: isTime } of head.columns) {
    let values = unfolded(bytes, offset, rows, numBytes);
    offset += rows * numBytes;
    // Sums can exceed 32 bits.
    if (isTime || inSeries) values = Float64Array.from(values);
    for (const [other, sign] of terms) {
      const others = columns[other];
      for (let row = 0; row < rows; row += 1) values[row] += sign * others[row];
    }
    if (inSeries) {
      const { rank } = columns;
      for (let row = 1; row < rows; row += 1) {
        if (rank[row] === rank[row - 1]) values[row] += values[row - 1];
      }
    }
    columns[name] = values;
  }
  // After all columns are decoded, since the differences are between rounded times.
  for (const { name, is_time: isTime } of head.columns) {
    if (!isTime || head.resolution_ns === 1) continue;
    const values = columns[name];
    for (let row = 0; row < rows; row += 1) {
      if (values[row] >= 0) values[row] *= head.resolution_ns;
    }
  }
  return columns;
}

class Calls extends Rows {
  constructor(table, bytes) {
    super(table);
    this.own = decodedColumns(table.store, bytes);
    this.site = this.own.site;
    this.byRank = new Map();
    const { rank } = this.own;
    for (let row = 0; row < this.num_rows; row += 1) {
      if (row && rank[row] === rank[row - 1]) continue;
      if (row) this.byRank.get(rank[row - 1]).to = row;
      this.byRank.set(rank[row], { from: row, to: this.num_rows });
    }
    this.sites = null;
    const { columns, num_rows: rows, overview } = table.store;
    const used = columns.reduce((sum, column) => sum + rows * column.num_bytes, 0);
    this.overview = overview ? new Overview(overview, bytes.subarray(used)) : null;
  }

  /** Restricts table and timeline to the calls of these sites (a flag for each); null shows all. */
  setSites(sites) {
    this.sites = sites;
  }

  value(row, name) {
    const own = this.own[name];
    if (own === undefined) return super.value(this.site[row], name);
    return own[row] === -1 && name !== "step" ? null : own[row];
  }

  holder(row) {
    return this.site[row];
  }

  /** The sort keys of a column that differs from call to call. */
  keys(name) {
    return this.own[name];
  }

  /** Searches the texts of sites; values that differ from call to call are matched as `rank:3`. */
  found(words) {
    const named = [];
    const plain = [];
    for (const word of words) {
      const [, name, value] = word.match(/^([a-z_]+):(-?\d+)$/) || [];
      if (this.own[name]) named.push([this.own[name], Number(value)]);
      else plain.push(word);
    }
    const isIn = (site) => !this.sites || this.sites[site];
    const sites = Array.from({ length: this.num_sites }, (_, site) => isIn(site) && this.matches(site, plain));
    const found = new Uint32Array(this.num_rows);
    let count = 0;
    for (let row = 0; row < this.num_rows; row += 1) {
      if (!sites[this.site[row]]) continue;
      if (named.every(([values, value]) => values[row] === value)) found[count++] = row;
    }
    return found.subarray(0, count);
  }

  /** The searchable text of a site. */
  haystack(site) {
    if (!this.haystacks[site]) {
      const shown = this.shown.filter((name) => !this.own[name]);
      this.haystacks[site] = this.columns
        .filter((column) => !this.own[column.name])
        .map((column) => super.value(site, column.name))
        .filter((value) => value !== null && typeof value !== "number")
        .concat(shown.map((name) => formatted(super.value(site, name), this.byName.get(name))))
        .join("\n")
        .toLowerCase();
    }
    return this.haystacks[site];
  }

  /** The row of call `id` of a rank, or undefined. */
  rowOf(rank, id) {
    const { from = 0, to = 0 } = this.byRank.get(rank) || {};
    const row = this.own.id.subarray(from, to).indexOf(id);
    return row < 0 ? undefined : from + row;
  }
}
