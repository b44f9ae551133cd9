"use strict";
/* The fields of the page's address, in the order in which they are applied. */

const MAX_SEARCH = 300;

function shortText(text) {
  if (text.length > MAX_SEARCH) throw new RangeError("it is too long");
  return text;
}

function viewFields({ themes, flame, timeline, tables, filter, cards, path, detail }) {
  const field = (name, section, read, parse, apply) => ({ name, section, read, parse, apply });
  const always = [
    field("theme", "overview", () => themes.chosen, oneOf(["light", "dark"], "a theme"), (name) => themes.choose(name)),
    field("table", "tables", () => tables.text(), (text) => tables.parse(text), (name) => tables.show(name)),
    field("sort", "tables", () => tables.sortText(), (text) => tables.parseSort(text), (sort) => tables.setSort(sort)),
    field("search", "tables", () => tables.search.value, shortText, (text) => tables.setSearch(text)),
    field("call", "", () => detail.text(), (text) => detail.parse(text), (row) => detail.follow(row)),
  ];
  if (!timeline) return always;
  return [
    ...always.slice(0, 1),
    field("measure", "flame", () => flame.measureText(), oneOf(Object.keys(flame.values), "a measure"), (name) => flame.setMeasure(name)),
    field("block", "flame", () => flame.pathText(flame.level), (text) => flame.parsePath(text), (level) => flame.setLevel(level)),
    field("blocks", "flame", () => flame.blocks.search.value, shortText, (text) => flame.blocks.setSearch(text)),
    field("hide", "timeline", () => timeline.hiddenText(), (text) => timeline.parseHidden(text), (kinds) => timeline.setHidden(kinds)),
    field("module", "timeline", () => filter.module, (text) => filter.parse(text), (module) => filter.set(module)),
    field("finding", "timeline", () => cards.text(), (text) => cards.parse(text), (place) => cards.follow(place)),
    field("path", "timeline", () => path.text(), (text) => path.parse(text), (place) => path.follow(place)),
    field("time", "timeline", () => timeline.rangeText(), (text) => timeline.parseRange(text), (range) => timeline.setRange(range)),
    ...always.slice(1),
  ];
}

/** A note on fields of an address that could not be applied, until it is closed. */
class LinkNote {
  constructor() {
    this.note = document.getElementById("link-note");
    document.getElementById("link-note-close").addEventListener("click", () => this.show([]));
  }

  show(refused) {
    this.note.hidden = !refused.length;
    document.getElementById("link-note-text").textContent =
      visible(`Parts of the link could not be applied: ${refused.join("; ")}.`);
  }
}
