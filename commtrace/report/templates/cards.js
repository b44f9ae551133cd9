"use strict";
/* Findings and problems: the first few of a list, and the way from each to its calls. */

const CARDS_AT_ONCE = 6;

class Cards {
  constructor(calls, timeline) {
    Object.assign(this, { calls, timeline });
    this.bar = document.getElementById("marked");
    this.cut("finding-list", "more-findings", "findings");
    this.cut("problem-list", "more-problems", "problems");
    for (const button of document.querySelectorAll("[data-evidence]")) {
      button.addEventListener("click", () => this.show(button));
    }
    document.getElementById("marked-before").addEventListener("click", () => this.go(-1));
    document.getElementById("marked-after").addEventListener("click", () => this.go(1));
    document.getElementById("marked-close").addEventListener("click", () => this.close());
  }

  /** Hides all but the first cards of a list behind a button. */
  cut(listId, moreId, name) {
    const list = document.getElementById(listId);
    if (!list) return;
    const rest = [...list.children].slice(CARDS_AT_ONCE);
    const more = document.getElementById(moreId);
    more.hidden = !rest.length;
    for (const card of rest) card.hidden = true;
    const button = more.firstElementChild;
    button.textContent = `Show ${rest.length} more ${name}`;
    button.addEventListener("click", () => {
      for (const card of rest) card.hidden = false;
      more.hidden = true;
    });
  }

  show(button) {
    const named = button.dataset.evidence.split(",").map((each) => each.split(":").map(Number));
    const rows = named.map(([rank, id]) => this.calls.rowOf(rank, id)).filter((row) => row !== undefined);
    this.places = this.together(rows);
    this.all = rows;
    document.getElementById("marked-title").textContent = button.dataset.title;
    this.bar.hidden = false;
    this.at = 0;
    this.go(0);
  }

  /** The calls that overlap in time, as one collective's do, in groups by time. */
  together(rows) {
    const { issue_ns: start, end_ns: end } = this.calls.own;
    const groups = [];
    let reach = -Infinity;
    for (const row of [...rows].sort((a, b) => start[a] - start[b])) {
      if (start[row] > reach) groups.push([]);
      groups[groups.length - 1].push(row);
      reach = Math.max(reach, end[row]);
    }
    return groups;
  }

  go(by) {
    const count = this.places.length;
    this.at = (this.at + by + count) % Math.max(count, 1);
    document.getElementById("marked-place").textContent = count ? `${this.at + 1} of ${count}` : "not in this part of the run";
    for (const id of ["marked-before", "marked-after"]) document.getElementById(id).hidden = count < 2;
    if (count) this.timeline.mark(this.places[this.at], this.all);
  }

  close() {
    this.bar.hidden = true;
    this.timeline.unmark();
  }
}
