"use strict";
/* Pictures: the figures of the page's data, the flame graph with switches, in the theme's colours. */

const LEAST_LABELLED = 0.012; // the part of the picture's width that has room for a label

/** Marks one of a group of buttons as the chosen one. */
function press(group, value) {
  for (const button of group.querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(button.dataset.value === value));
  }
}

class Flame {
  constructor(data) {
    this.figure = data.flame;
    this.values = data.flame_values;
    this.levels = data.flame.layout.meta.phases;
    this.place = document.getElementById("flame-picture");
    this.empty = document.getElementById("flame-empty");
    const measured = Object.keys(this.values).filter((name) => this.values[name][0] > 0);
    this.value = measured[0] || Object.keys(this.values)[0];
    press(document.getElementById("flame-value"), this.value);
    this.level = "0";
    this.choose("flame-value", (value) => { this.value = value; });
    this.choose("flame-phase", (phase) => { this.level = this.levels[phase] || "0"; });
  }

  choose(id, change) {
    const group = document.getElementById(id);
    group.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      change(button.dataset.value);
      press(group, button.dataset.value);
      this.draw(this.colours);
    });
  }

  zoomTo(level) {
    this.level = level;
    const phase = Object.keys(this.levels).find((name) => this.levels[name] === level);
    press(document.getElementById("flame-phase"), level === "0" ? "" : phase);
    this.draw(this.colours);
  }

  async draw(colours) {
    this.colours = colours;
    const figure = recoloured(this.figure, colours);
    const [trace] = figure.data;
    const values = this.values[this.value];
    const nothing = !trace || !values[Number(this.level)];
    this.place.hidden = nothing;
    this.empty.hidden = !nothing;
    this.empty.textContent = "Nothing to draw by this measure: it is zero, or not in the trace.";
    if (nothing) return;
    trace.values = values;
    trace.level = this.level;
    figure.layout.margin.t = this.level === "0" ? figure.layout.margin.b : 8 + trace.pathbar.thickness;
    const least = LEAST_LABELLED * values[Number(this.level)];
    trace.textinfo = "text"; // what is too narrow for its label costs the time to find that out
    trace.text = trace.labels.map((label, place) => (values[place] < least ? "" : label));
    trace.textfont = { color: trace.marker.colors.map(readableOn) };
    await Plotly.react(this.place, [trace], figure.layout, { ...CONFIG, displayModeBar: false });
    if (this.listening) return;
    this.listening = true;
    this.place.on("plotly_icicleclick", (event) => {
      this.zoomTo(String(event.nextLevel || "0"));
      return false; // plotly's own zoom leaves no room for the bar that leads back
    });
  }
}

/** A picture that is drawn as it came. */
class Pattern {
  constructor(name, figure) {
    this.figure = figure;
    this.place = document.getElementById(`${name}-picture`);
  }

  draw(colours) {
    const { data, layout } = recoloured(this.figure, colours);
    return Plotly.react(this.place, data, layout, { ...CONFIG, displayModeBar: false });
  }
}
