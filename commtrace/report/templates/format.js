"use strict";
/* Formats numbers by the unit of their column, as commtrace.units does. */

function scaled(value, base, units) {
  let place = 0;
  let size = value;
  while (Math.abs(size) >= 999.5 && place < units.length - 1) {
    size /= base;
    place += 1;
  }
  const text = units[place] === "B" ? size.toFixed(0) : String(Number(size.toPrecision(3)));
  return `${text} ${units[place]}`;
}

const FORMATS = {
  bytes: (value) => scaled(value, 1000, ["B", "kB", "MB", "GB", "TB"]),
  "bytes/s": (value) => scaled(value, 1000, ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"]),
  ns: (value) => scaled(value, 1000, ["ns", "µs", "ms", "s"]),
  "ns since start": (value) => scaled(value, 1000, ["ns", "µs", "ms", "s"]),
  1: (value) => `${(100 * value).toFixed(1)} %`,
  "": (value) => value.toLocaleString("en", { maximumFractionDigits: 2 }),
};

const NOT_KNOWN = "–";
// Columns of names of this package, which are shown as words.
const WORDED = ["reason", "cause", "action", "state", "what", "bound", "rule", "direction"];
const NAME = /^[a-z]+(_[a-z]+)+$/;
const UNPRINTABLE = /[^\P{C}\n\t]|[\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu;

/** Escapes the control and bidirectional characters of a text, as commtrace.escaping does. */
function visible(text) {
  return text.replace(UNPRINTABLE, (letter) => {
    const code = letter.codePointAt(0);
    const [mark, digits] = code < 0x100 ? ["x", 2] : code < 0x10000 ? ["u", 4] : ["U", 8];
    return `\\${mark}${code.toString(16).padStart(digits, "0")}`;
  });
}

/** Formats one value of a column. */
function formatted(value, column) {
  if (value === null || value === undefined || value === "") return NOT_KNOWN;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "string") return visible(WORDED.includes(column.name) && NAME.test(value) ? value.replaceAll("_", " ") : value);
  if (column.minus && value === -1) return column.minus;
  if (["id", "step", "rank", "seq", "source_line", "stream"].includes(column.name)) {
    return column.name === "step" && value < 0 ? "outside" : String(value);
  }
  return (FORMATS[column.unit] || FORMATS[""])(value);
}

/** Makes an element with a class and text or child elements; text is escaped, never HTML. */
function element(tag, className, ...content) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...content.map((each) => (typeof each === "string" ? visible(each) : each)));
  return made;
}

/** The name of the colour of a kind or phase; that of "other" if it has none. */
function colourClass(what, name, known) {
  return `${what}-${known.includes(name) ? name : "other"}`;
}
