"use strict";
/* The other ranks of a call, their arrivals, and differences between their calls; as in
   commtrace.analyze.story.peers. */

const TRANSFERS = ["send", "recv"];
const ALIKE = ["kind", "reduce_op", "root", "dtype"];

/** The ranks that made a call, by arrival, and the ranks of its group that did not, or that the page
    does not show. */
function meetingOf(calls, row, groups, shownRanks) {
  const rows = peersOf(calls, row);
  const { issue_ns: issue, rank } = calls.own;
  const issued = rows.map((each) => issue[each]).filter((time) => time >= 0);
  const first = Math.min(...issued);
  const last = Math.max(...issued);
  const value = (each, name) => calls.value(each, name);
  const isTransfer = TRANSFERS.includes(value(row, "kind"));
  const peers = rows.map((each) => ({
    row: each,
    after: issue[each] >= 0 ? issue[each] - first : null,
    isThis: each === row,
    isLast: issue[each] === last && last > first,
    differs: isTransfer ? "" : ALIKE.filter((name) => value(each, name) !== value(row, name))
      .map((name) => `${name} ${value(each, name) ?? NOT_KNOWN}`).join(", "),
  }));
  // A group may be named like a property that every object has.
  const group = Object.hasOwn(groups, value(row, "group") || "") ? groups[value(row, "group")] : null;
  const wanted = isTransfer ? [value(row, "rank"), value(row, "peer")].filter((each) => each !== null)
    : group ? group.ranks : [];
  const arrived = new Set(rows.map((each) => rank[each]));
  const absent = wanted.filter((each) => !arrived.has(each));
  const isShown = (each) => !shownRanks || shownRanks.includes(each);
  return { peers, group, missing: absent.filter(isShown), unseen: absent.filter((each) => !isShown(each)) };
}

/** The rows of a collective, or of both ends of a transfer, by arrival. */
function peersOf(calls, row) {
  const { number, partner_id: partner, rank, issue_ns: issue } = calls.own;
  if (TRANSFERS.includes(calls.value(row, "kind"))) {
    const other = calls.value(row, "peer") === null ? undefined
      : calls.rowOf(calls.value(row, "peer"), partner[row]);
    return byArrival(other === undefined ? [row] : [row, other], issue, rank);
  }
  if (number[row] < 0) return [row];
  const group = calls.data.group.codes;
  const isIn = group.map((code) => code === group[calls.site[row]]);
  const rows = [];
  for (let each = 0; each < calls.num_rows; each += 1) {
    if (number[each] === number[row] && isIn[calls.site[each]]) rows.push(each);
  }
  return byArrival(rows, issue, rank);
}

function byArrival(rows, issue, rank) {
  return rows.sort((a, b) => issue[a] - issue[b] || rank[a] - rank[b]);
}

const SAME_REDISTRIBUTION = ["op", "op_id", "argument", "source_spec", "target_spec", "step", "phase",
  "module", "module_call", "source_file", "source_line"];

/** The calls of one redistribution: adjacent, with the same reason, one per group. */
function redistributionOf(calls, row) {
  if (!calls.value(row, "source_spec")) return [];
  const wanted = SAME_REDISTRIBUTION.map((name) => calls.value(row, name));
  const rows = rowsOfRank(calls, row)
    .filter((each) => SAME_REDISTRIBUTION.every((name, place) => calls.value(each, name) === wanted[place]))
    .sort((a, b) => calls.own.id[a] - calls.own.id[b]);
  let part = [];
  let groups = new Set();
  for (const each of rows) {
    const group = calls.value(each, "group");
    const follows = part.length && calls.own.id[each] === calls.own.id[part.at(-1)] + 1;
    if (!follows || groups.has(group)) {
      if (part.includes(row)) return part;
      [part, groups] = [[], new Set()];
    }
    part.push(each);
    groups.add(group);
  }
  return part.includes(row) ? part : [row];
}

const ALIKE_PLACE = ["source_file", "source_line", "module", "phase", "op", "kind", "group"];

/** The number of calls that its rank made for the same operator at the same source line. */
function countAlike(calls, row) {
  const wanted = ALIKE_PLACE.map((name) => calls.value(row, name));
  return rowsOfRank(calls, row)
    .filter((each) => ALIKE_PLACE.every((name, place) => calls.value(each, name) === wanted[place])).length;
}

function rowsOfRank(calls, row) {
  const { from, to } = calls.byRank.get(calls.own.rank[row]);
  return Array.from({ length: to - from }, (_, place) => from + place);
}
