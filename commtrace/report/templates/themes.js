"use strict";
/* Light and dark theme: the system's, until one is chosen here or in the address. */

const STORED_THEME = "commtrace-theme";
const THEME_NAMES = ["light", "dark"];

function storedTheme() {
  try {
    return localStorage.getItem(STORED_THEME);
  } catch {
    return null;
  }
}

class Themes {
  constructor(dark, onChange) {
    this.colours = { light: {}, dark };
    this.system = window.matchMedia("(prefers-color-scheme: dark)");
    this.onDraw = () => {};
    this.chosen = "";
    const stored = storedTheme();
    this.stored = THEME_NAMES.includes(stored) ? stored : "";
    this.system.addEventListener("change", () => this.onDraw());
    document.getElementById("theme").addEventListener("click", () => {
      this.toggle();
      onChange("theme");
    });
  }

  get name() {
    return document.documentElement.dataset.theme || (this.system.matches ? "dark" : "light");
  }

  /** Applies a theme; "" is the last one chosen in this browser, or the system's. */
  choose(name) {
    this.chosen = name;
    const before = this.name;
    const root = document.documentElement.dataset;
    if (name || this.stored) root.theme = name || this.stored;
    else delete root.theme;
    if (this.name !== before) this.onDraw();
  }

  toggle() {
    this.choose(this.name === "dark" ? "light" : "dark");
    try {
      localStorage.setItem(STORED_THEME, this.chosen);
    } catch {
      // Storage may be unavailable for local files; this page switches anyway.
    }
  }
}
