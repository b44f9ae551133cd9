"use strict";
/* Keyboard shortcuts: tables by the part of the page that has the focus or lies under the pointer.
   They are inactive while text is entered. `?` shows the tables. */

const TYPED_INTO = "input, select, textarea, [contenteditable]";
const PRESSED = "button, a, summary";

class Keys {
  constructor() {
    this.scopes = [];
    this.help = document.getElementById("help");
    document.addEventListener("keydown", (event) => this.press(event));
    document.addEventListener("pointermove", (event) => { this.under = event.target; }, { passive: true });
    for (const button of document.querySelectorAll("[data-help]")) {
      button.addEventListener("click", () => this.toggleHelp());
    }
  }

  /** Registers rows `{ keys, does, act, isLocal }` for a part of the page; local ones need the focus. */
  add(title, element, rows) {
    this.scopes.push({ title, element, rows });
  }

  press(event) {
    const { target } = event;
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (target.closest?.(TYPED_INTO) || this.help.open) return;
    const holds = (element, inside) => !element || (inside instanceof Node && element.contains(inside));
    const focused = this.scopes.filter(({ element }) => element && holds(element, target));
    const pointed = this.scopes.filter(({ element }) => element && holds(element, this.under));
    const [scope] = focused.length ? focused : pointed.length ? pointed : this.inView();
    const global = this.scopes.filter(({ element }) => !element);
    for (const each of scope ? [scope, ...global] : global) {
      const row = each.rows.find(({ keys }) => keys.includes(event.key));
      if (!row) continue;
      if (row.isLocal && (each !== focused[0] || target.closest(PRESSED))) continue;
      if (row.act(event) === false) return; // not handled: keep the browser's default
      event.preventDefault();
      return;
    }
  }

  /** The part with most of the window's height, if neither focus nor pointer selects one. */
  inView() {
    const seen = ({ element }) => {
      const { top, bottom } = element.getBoundingClientRect();
      return Math.min(bottom, window.innerHeight) - Math.max(top, 0);
    };
    return this.scopes.filter((each) => each.element && seen(each) > 0).sort((a, b) => seen(b) - seen(a));
  }

  toggleHelp() {
    if (this.help.open) return this.help.close();
    const parts = this.scopes.flatMap(({ title, rows }) => [
      element("h3", "", title),
      element("dl", "", ...rows.map(({ keys, does, shown }) => {
        const names = (shown || keys).map((key) => element("kbd", "", KEY_NAMES[key] || key));
        return element("div", "", element("dt", "", ...names), element("dd", "", does));
      })),
    ]);
    document.getElementById("help-body").replaceChildren(...parts);
    return this.help.showModal();
  }
}

const KEY_NAMES = {
  ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", " ": "Space", Escape: "Esc",
};

/** Converts the distance of a wheel event to pixels, from any unit of the browser. */
function wheelPixels(event) {
  const unit = [1, 16, window.innerHeight][event.deltaMode] || 1;
  return { x: unit * event.deltaX, y: unit * event.deltaY };
}

/** Moves focus among the rows of a list with the arrow keys; one of them is reached by Tab. */
function roveRows(event, rows) {
  const at = rows.indexOf(event.target);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[event.key];
  if (at < 0 || to === undefined || !rows[to]) return;
  event.preventDefault();
  rows[at].tabIndex = -1;
  rows[to].tabIndex = 0;
  rows[to].focus();
}
