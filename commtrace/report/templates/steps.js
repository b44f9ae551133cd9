"use strict";
/* The step selector, which follows the view. */

const SHARE_OF_VIEW = 0.5; // least fraction of the view that the selected step fills
const WHOLE_RUN = -1;

class StepBox {
  /** `steps` are `{ number, start, end }`; `choose` is called with the position of one, or WHOLE_RUN. */
  constructor(steps, choose) {
    Object.assign(this, { steps, choose });
    this.select = document.getElementById("step");
    if (!steps.length) return;
    this.other = new Option("", ""); // for a range that is neither one step nor the whole run
    this.select.append(this.other, new Option("Whole run", String(WHOLE_RUN)));
    steps.forEach(({ number }, place) => this.select.append(new Option(`step ${number}`, String(place))));
    this.select.addEventListener("change", () => choose(Number(this.select.value)));
    document.getElementById("step-before").addEventListener("click", () => choose(this.beside(-1)));
    document.getElementById("step-after").addEventListener("click", () => choose(this.beside(1)));
    document.getElementById("stepper").hidden = false;
  }

  /** The step before or after the range in view. */
  beside(by) {
    if (this.isWhole) return by > 0 ? 0 : WHOLE_RUN;
    const [first, last] = this.range;
    const distance = ({ start, end }) => by * ((start + end) / 2 - (first + last) / 2);
    const isBeside = (place) => (this.one < 0 ? distance(this.steps[place]) > 0 : by * (place - this.one) > 0);
    const places = this.steps.map((_, place) => place).filter(isBeside);
    if (!places.length) return by > 0 ? this.steps.length - 1 : WHOLE_RUN;
    return by > 0 ? places[0] : places.at(-1);
  }

  /** Selects the step that a range shows. */
  follow(range, isWhole) {
    Object.assign(this, { range, isWhole });
    if (!this.steps.length) return;
    const [first, last] = range;
    const within = ({ start, end }) => Math.min(end, last) - Math.max(start, first);
    const seen = this.steps.filter((step) => within(step) > 0);
    this.one = this.steps.indexOf(seen.find((step) => within(step) >= SHARE_OF_VIEW * (last - first)));
    this.other.textContent = seen.length > 1 ? `steps ${seen[0].number} to ${seen.at(-1).number}` : "outside of steps";
    if (seen.length === 1) this.other.textContent = `around step ${seen[0].number}`;
    this.other.hidden = isWhole || this.one >= 0;
    this.select.value = isWhole ? String(WHOLE_RUN) : this.one >= 0 ? String(this.one) : "";
  }
}
