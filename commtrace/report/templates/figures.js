"use strict";
/* Shared by all pages with figures: unpacking of embedded data, buttons, and colours of the theme. */

const CONFIG = {
  displaylogo: false,
  responsive: true,
  modeBarButtons: [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d", "toImage"]],
  doubleClick: "reset",
};

const TEXTS = ["hovertext", "labels", "text", "ids", "parents", "name"];

/** Decodes base64. */
function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let place = 0; place < binary.length; place += 1) bytes[place] = binary.charCodeAt(place);
  return bytes;
}

/** Unpacks an element that holds base64 of a gzip stream. */
function unpacked(id) {
  const holder = document.getElementById(id);
  const bytes = bytesOf(holder.textContent.trim());
  // The text of a large run would stay in memory.
  holder.remove();
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
}

/** A copy of a part of a figure with colours replaced as given by `colours`; texts are unchanged. */
function recoloured(part, colours) {
  if (typeof part === "string") return colours[part] || part;
  if (Array.isArray(part)) {
    const isNumeric = typeof part[part.length - 1] === "number"; // [0.5, "#fff"] is of a scale
    return isNumeric ? part : part.map((each) => recoloured(each, colours));
  }
  if (part === null || typeof part !== "object") return part;
  return Object.fromEntries(
    Object.entries(part).map(([key, value]) => [
      key,
      TEXTS.includes(key) ? value : recoloured(value, colours),
    ]),
  );
}

/** Black or white, whichever has more contrast on a colour; as in commtrace.figures.theme. */
function readableOn(colour) {
  const [red, green, blue] = [1, 3, 5].map((place) => {
    const value = parseInt(colour.slice(place, place + 2), 16) / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  const luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  return (luminance + 0.05) ** 2 > 0.05 * 1.05 ? "#000000" : "#ffffff";
}
