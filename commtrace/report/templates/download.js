"use strict";
/* Tables as CSV, pictures as SVG: files that the browser saves. */

const ROWS_PER_PART = 20_000;
// First characters that a spreadsheet treats as a formula; as in commtrace.exporters.spreadsheet.
const UNSEEN = "[\\s\\x00-\\x20\\x7f-\\xa0\\u00ad\\u200b-\\u200f\\u202a-\\u202e\\u2060-\\u206f\\ufeff]*";
const RISKY = new RegExp(`^'*(?:${UNSEEN}[=+\\-@＝＋－＠]|[\\t\\r\\n])`);

function saveAs(name, parts, type) {
  const url = URL.createObjectURL(new Blob(parts, { type }));
  const link = element("a", "");
  link.href = url;
  link.download = name;
  link.click();
  // The browser reads the file after `click` has returned.
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** A cell of CSV; a text that a spreadsheet would execute gets a leading single quote. */
function csvCell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "string") return String(value);
  const safe = RISKY.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** The lines of a table in chunks of text: column names, then plain numbers in their units. */
async function csvParts(view) {
  const names = view.rows.columns.map((column) => column.name);
  const rows = view.rowsInOrder();
  const parts = [`${names.map(csvCell).join(",")}\r\n`];
  for (let from = 0; from < rows.length; from += ROWS_PER_PART) {
    const lines = [];
    for (const row of rows.slice(from, from + ROWS_PER_PART)) {
      lines.push(names.map((name) => csvCell(view.rows.value(row, name))).join(","));
    }
    parts.push(`${lines.join("\r\n")}\r\n`);
    await new Promise((resume) => setTimeout(resume)); // the page answers meanwhile
  }
  return parts;
}

async function saveTable(view) {
  saveAs(`${view.rows.name}.csv`, await csvParts(view), "text/csv;charset=utf-8");
}

/** Exports a figure as it is currently shown. */
async function savePicture(name) {
  const place = document.getElementById(`${name}-picture`);
  const { width, height } = place.getBoundingClientRect();
  const url = await Plotly.toImage(place, { format: "svg", width: Math.round(width), height: Math.round(height) });
  const text = decodeURIComponent(url.slice(url.indexOf(",") + 1));
  saveAs(`${name}.svg`, [text], "image/svg+xml");
}

function offerPictures() {
  for (const button of document.querySelectorAll("[data-svg]")) {
    button.addEventListener("click", () => savePicture(button.dataset.svg));
  }
}
