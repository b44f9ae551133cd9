"use strict";
/* The module filter of the timeline and the table of calls. */

class ModuleFilter {
  constructor(calls, onChange) {
    Object.assign(this, { calls, onChange, module: "" });
    const { strings, codes } = calls.data.module;
    this.names = strings;
    this.nameOfSite = codes;
    for (const button of document.querySelectorAll("[data-unfilter]")) {
      button.addEventListener("click", () => this.set(""));
    }
  }

  holds(name, module) {
    return !module || name === module || name.startsWith(`${module}.`);
  }

  parse(text) {
    if (!this.names.some((name) => this.holds(name, text))) throw new RangeError("no call is in such a module");
    return text;
  }

  set(module) {
    this.module = module;
    const isIn = this.names.map((name) => this.holds(name, module));
    this.calls.setSites(module ? this.nameOfSite.map((code) => isIn[code]) : null);
    for (const bar of document.querySelectorAll(".filter")) bar.hidden = !module;
    for (const text of document.querySelectorAll("[data-filter]")) {
      const count = this.calls.found([]).length.toLocaleString("en");
      text.textContent = module ? visible(`Only ${module}: ${count} calls`) : "";
    }
    this.onChange();
  }
}
