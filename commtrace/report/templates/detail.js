"use strict";
/* The side panel that describes one call. */

class Detail {
  /** `timeline` is null if there are no calls; `onChange` is called when another call is open. */
  constructor({ calls, facts, timeline, filter, showFinding, onChange }) {
    Object.assign(this, { calls, timeline, onChange, row: -1 });
    this.panel = document.getElementById("detail");
    this.context = (row) => new Story(calls, facts, row, {
      open: (other) => this.open(other),
      filter: (module) => filter(module),
      show: (card) => showFinding(card),
    });
    document.getElementById("detail-close").addEventListener("click", () => this.close());
    document.getElementById("detail-before").addEventListener("click", () => this.step(-1));
    document.getElementById("detail-after").addEventListener("click", () => this.step(1));
    document.getElementById("detail-show").addEventListener("click", () => {
      const { row } = this;
      this.close();
      this.timeline.mark([row]);
      this.timeline.select(row);
    });
  }

  open(row) {
    this.show(row);
    this.onChange("call");
  }

  close() {
    if (this.panel.hidden) return false;
    this.show(-1);
    this.onChange("call");
    return true;
  }

  /** Shows a call, or none for -1. */
  show(row) {
    if (this.panel.hidden && row >= 0) this.before = document.activeElement;
    const wasOpen = !this.panel.hidden;
    this.row = row;
    this.panel.hidden = row < 0;
    if (wasOpen !== row >= 0) {
      document.body.classList.toggle("reading", row >= 0);
      window.dispatchEvent(new Event("resize")); // figures take the room that the panel leaves
    }
    if (row < 0) {
      if (wasOpen && this.before && this.before.isConnected) this.before.focus({ preventScroll: true });
      return;
    }
    const value = (name) => this.calls.value(row, name);
    document.getElementById("detail-title").textContent =
      visible(`${value("kind")} on rank ${value("rank")}, call ${value("id")}`);
    document.getElementById("detail-body").replaceChildren(...this.context(row).chapters());
    document.getElementById("detail-show").hidden = !this.timeline || value("issue_ns") === null;
    document.getElementById("detail-before").disabled = this.beside(-1) === undefined;
    document.getElementById("detail-after").disabled = this.beside(1) === undefined;
    this.panel.scrollTop = 0;
    if (!wasOpen) document.getElementById("detail-close").focus({ preventScroll: true });
    if (this.timeline) this.timeline.select(row);
    this.uncover(row);
  }

  /** Scrolls what the panel was opened from, if the panel covers it. */
  uncover(row) {
    const top = this.panel.getBoundingClientRect().top;
    if (top <= 0) return; // the panel is beside the page
    const [first] = [this.before?.closest("tbody tr"), this.timeline?.place].filter((each) => each?.isConnected);
    if (first === this.timeline?.place) this.timeline.bringAbove(row, top);
    else first?.scrollIntoView({ block: "nearest" });
  }

  /** The call before or after on the same rank. */
  beside(by) {
    const { rank } = this.calls.own;
    return rank[this.row + by] === rank[this.row] ? this.row + by : undefined;
  }

  step(by) {
    const row = this.beside(by);
    if (row !== undefined) this.open(row);
  }

  text() {
    return this.row < 0 ? "" : `${this.calls.own.rank[this.row]}:${this.calls.own.id[this.row]}`;
  }

  parse(text) {
    if (!text) return -1;
    const found = text.match(/^(\d{1,9}):(\d{1,15})$/);
    if (!found) throw new RangeError("it is not a rank and a call, such as 0:92");
    const row = this.calls.rowOf(Number(found[1]), Number(found[2]));
    if (row === undefined) throw new RangeError("there is no such call");
    return row;
  }

  follow(row) {
    this.show(row);
  }
}
