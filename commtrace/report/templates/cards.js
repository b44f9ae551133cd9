"use strict";
/* Findings and problems: the first few of a list, and links from each to its calls. */

const CARDS_AT_ONCE = 6;

class Cards {
  constructor(calls, timeline, onChange) {
    Object.assign(this, { calls, timeline, onChange, shown: "" });
    this.bar = document.getElementById("marked");
    this.shorten("finding-list", "more-findings", "findings");
    this.shorten("change-list", "more-changes", "changes");
    this.shorten("problem-list", "more-problems", "problems");
    for (const button of document.querySelectorAll("[data-evidence]")) {
      button.addEventListener("click", () => this.show(button.closest("li").id));
    }
    for (const link of document.querySelectorAll("#change-list h3 a")) {
      link.addEventListener("click", (event) => {
        event.preventDefault(); // the address tells what is shown
        this.reveal(Number(link.hash.split("-")[1]) - 1);
      });
    }
    document.getElementById("marked-before").addEventListener("click", () => this.step(-1));
    document.getElementById("marked-after").addEventListener("click", () => this.step(1));
    document.getElementById("marked-close").addEventListener("click", () => this.close());
  }

  /** Hides all but the first cards of a list behind a button. */
  shorten(listId, moreId, name) {
    const list = document.getElementById(listId);
    if (!list) return;
    const rest = [...list.children].slice(CARDS_AT_ONCE);
    const more = document.getElementById(moreId);
    more.hidden = !rest.length;
    for (const card of rest) card.hidden = true;
    const button = more.firstElementChild;
    button.textContent = `Show ${rest.length} more ${name}`;
    button.addEventListener("click", () => this.showAll(list));
  }

  showAll(list) {
    for (const card of list.children) card.hidden = false;
    list.nextElementSibling.hidden = true;
  }

  /** Scrolls to a finding, by its position. */
  reveal(place) {
    const card = document.getElementById(`finding-${place + 1}`);
    if (card.hidden) this.showAll(card.parentElement);
    card.scrollIntoView();
  }

  /** Shows the calls of a finding or problem, by the id of its card. */
  show(id) {
    this.choose(id);
    this.go();
    this.onChange("finding");
  }

  step(by) {
    this.at = (this.at + by + this.places.length) % Math.max(this.places.length, 1);
    this.go();
    this.onChange("finding");
  }

  choose(id) {
    const button = document.querySelector(`#${id} [data-evidence]`);
    this.shown = id;
    const named = button.dataset.evidence.split(",").map((each) => each.split(":").map(Number));
    const rows = named.map(([rank, id]) => this.calls.rowOf(rank, id)).filter((row) => row !== undefined);
    this.places = this.together(rows);
    this.all = rows;
    document.getElementById("marked-title").textContent = button.dataset.title;
    this.bar.hidden = false;
    this.at = 0;
    this.announce();
  }

  /** Groups of calls that overlap in time, as those of one collective do, by time. */
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

  announce() {
    const count = this.places.length;
    document.getElementById("marked-place").textContent = count ? `${this.at + 1} of ${count}` : this.timeline.data.stretches ? "not on this page" : "not in this part of the run";
    for (const id of ["marked-before", "marked-after"]) document.getElementById(id).hidden = count < 2;
  }

  /** Scrolls the evidence into view. */
  go() {
    this.announce();
    if (this.places.length) this.timeline.mark(this.places[this.at], this.all);
  }

  close() {
    this.hide();
    this.onChange("finding");
  }

  hide() {
    this.shown = "";
    this.bar.hidden = true;
    this.timeline.unmark();
  }

  /** The card whose calls are shown, with the position of the call, as text: `finding-2.1`. */
  text() {
    return this.shown && `${this.shown}.${this.at + 1}`;
  }

  parse(text) {
    if (!text) return null;
    const [, id, at] = text.match(/^((?:finding|problem)-\d{1,4})\.(\d{1,4})$/) || [];
    if (!id || !document.querySelector(`#${id} [data-evidence]`)) throw new RangeError("there is no such finding");
    return { id, at: Number(at) - 1 };
  }

  /** Marks the calls that an address names, without changing the view. */
  follow(wanted) {
    if (!wanted) return this.hide();
    this.choose(wanted.id);
    this.at = Math.min(Math.max(wanted.at, 0), Math.max(this.places.length - 1, 0));
    this.announce();
    return this.timeline.setMarked(this.all);
  }
}
