"use strict";
/* The blocks of the flame graph as a list: those too narrow to read, or those that a search finds,
   each with its full path. */

const BLOCKS_AT_ONCE = 10;
const FADED = 0.22; // of the colour of a block that the search does not find

class Blocks {
  constructor(flame, onChange) {
    this.flame = flame;
    this.search = document.getElementById("flame-search");
    this.panel = document.getElementById("flame-blocks");
    this.list = document.getElementById("flame-list");
    this.more = document.getElementById("flame-more");
    this.limit = BLOCKS_AT_ONCE;
    this.search.addEventListener("input", () => {
      this.limit = BLOCKS_AT_ONCE;
      flame.redraw();
      onChange("blocks");
    });
    this.more.addEventListener("click", () => {
      this.limit *= 4;
      this.draw(false);
    });
    this.list.addEventListener("keydown", (event) => {
      roveRows(event, [...this.list.querySelectorAll("button")]);
    });
    new ResizeObserver(() => this.draw(flame.place.hidden)).observe(flame.place);
  }

  setSearch(text) {
    this.search.value = text;
    this.flame.redraw();
  }

  get words() {
    return this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
  }

  /** The blocks that the search finds inside the one shown. */
  found() {
    const { flame, words } = this;
    return flame.parents.map((_, id) => String(id))
      .filter((id) => id !== WHOLE && flame.isInside(id, flame.level))
      .filter((id) => {
        const path = flame.pathOf(id).map((each) => flame.names[Number(each)].toLowerCase());
        const own = path.at(-1);
        return words.every((word) => path.some((name) => name.includes(word))) && words.some((word) => own.includes(word));
      });
  }

  /** The blocks whose names do not fit where they are drawn. */
  narrow() {
    const { flame } = this;
    const values = flame.values[flame.value];
    const [trace] = flame.figure.data;
    const names = fittingNames(trace.labels, values, values[Number(flame.level)], flame.place.clientWidth);
    return flame.parents.map((_, id) => String(id)).filter((id) => (
      id !== flame.level && values[Number(id)] > 0 && names[Number(id)] !== trace.labels[Number(id)] && flame.isInside(id, flame.level)
    ));
  }

  draw(isEmpty) {
    const { flame } = this;
    const isSearched = this.words.length > 0;
    const values = flame.values[flame.value];
    const ids = isEmpty || !flame.figure.data.length ? [] : isSearched ? this.found() : this.narrow();
    ids.sort((a, b) => values[Number(b)] - values[Number(a)]);
    const count = ids.length.toLocaleString("en");
    document.getElementById("flame-blocks-title").textContent = isSearched
      ? `${count} block${ids.length === 1 ? "" : "s"} found`
      : `${count} block${ids.length === 1 ? " is" : "s are"} too narrow for a name: a list`;
    this.panel.hidden = !ids.length && !isSearched;
    if (isSearched) this.panel.open = true;
    this.list.replaceChildren(...ids.slice(0, this.limit).map((id, place) => this.line(id, place)));
    this.more.hidden = ids.length <= this.limit;
    this.more.textContent = `Show more of ${count}`;
  }

  line(id, place) {
    const { flame } = this;
    const path = flame.pathOf(id).map((each) => flame.names[Number(each)]);
    const swatch = element("i", "swatch");
    const [trace] = recoloured({ data: flame.figure.data }, flame.colours).data;
    swatch.style.background = trace.marker.colors[Number(id)];
    const name = element("span", "path", ...path.slice(0, -1).map((each) => element("span", "faint", `${each} > `)), path.at(-1));
    const button = element("button", "", swatch, name, element("span", "amount", flame.amount(id)));
    button.type = "button";
    button.tabIndex = place ? -1 : 0;
    button.addEventListener("click", () => flame.zoomTo(id));
    return element("li", "", button);
  }

  /** The colours of all blocks; paler for those that an active search does not find. */
  faded(colours, surface) {
    if (!this.words.length) return colours;
    const kept = new Set(this.found());
    return colours.map((colour, id) => {
      if (kept.has(String(id))) return colour;
      const back = channels(surface);
      const mixed = channels(colour).map((value, place) => Math.round(FADED * value + (1 - FADED) * back[place]));
      return `#${mixed.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
    });
  }
}
