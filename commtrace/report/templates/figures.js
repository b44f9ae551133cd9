"use strict";
/* Shared by all pages with figures: unpacking of embedded data, buttons, and colours of the theme. */

const CONFIG = { displayModeBar: false, showTips: false, responsive: true, doubleClick: "reset" };
const LEGEND_ROW_PIXELS = 28; // as in commtrace.figures.theme
const MOST_LEGEND_PIXELS = 1000;
const LABEL_GAP = 14; // pixels between the pointer and a label
const EDGE_PIXELS = 3; // between a label, whose outline is wider than it says, and the edge of a picture
const LETTER_PIXELS = 6.6; // of a block's name, and of the room that it leaves beside it
const BESIDE_NAME = 8;
const LEAST_LETTERS = 4;
const MOST_LABEL_SHARE = 0.5; // of a picture's width that the labels of rows may take
const NARROW_ROW_PIXELS = 30; // of a label above its bar
const LEAST_MARGIN = 8;
const TICK_LABEL_PIXELS = 54; // of a label of the horizontal axis

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

/** Keeps the label of a figure beside the pointer; plotly puts it at the end of a bar, which may be far away. */
function keepLabelBeside(place) {
  const layer = place.querySelector(".hoverlayer");
  if (!layer) return;
  let at = null;
  let shift = [0, 0];
  const move = () => {
    const label = layer.querySelector(".hovertext path") || layer.querySelector(".hovertext");
    if (!label || !at) return;
    const [box, frame] = [label.getBoundingClientRect(), place.getBoundingClientRect()];
    const right = at.x + LABEL_GAP;
    const left = at.x - LABEL_GAP - box.width;
    const x = right + box.width <= frame.right - EDGE_PIXELS ? right : Math.max(left, frame.left + EDGE_PIXELS);
    const isOver = x < at.x && at.x < x + box.width;
    const below = isOver ? at.y + LABEL_GAP : at.y - box.height / 2;
    const y = Math.max(Math.min(below, frame.bottom - box.height), frame.top);
    const wanted = [x - (box.left - shift[0]), y - (box.top - shift[1])];
    if (wanted.every((each, axis) => Math.abs(each - shift[axis]) < 0.5)) return;
    shift = wanted;
    layer.setAttribute("transform", `translate(${shift.join(",")})`);
  };
  place.addEventListener("mousemove", (event) => {
    at = { x: event.clientX, y: event.clientY };
    move();
  }, { passive: true });
  // Plotly draws the label some time after the pointer has moved.
  new MutationObserver(move).observe(layer, { attributes: true, childList: true, subtree: true });
}

/** A layout with space for a legend with more rows than its margin has; undefined if it fits. */
function withRoomForLegend(place, layout) {
  const drawn = place.querySelector(".legend .bg");
  const side = layout.legend && layout.legend.yanchor === "top" ? "b" : "t";
  const extra = drawn ? Math.ceil(drawn.getBoundingClientRect().height) - LEGEND_ROW_PIXELS : 0;
  if (extra <= 0) return undefined;
  const margin = { ...layout.margin, [side]: layout.margin[side] + extra };
  return { ...layout, margin, height: layout.height + extra };
}

/** Draws a figure, with a second pass if its legend needs more rows than its margin has. */
async function drawWithLegend(place, data, layout, config) {
  if (layout.legend) layout.legend.maxheight = MOST_LEGEND_PIXELS;
  await Plotly.react(place, data, layout, config);
  const wider = withRoomForLegend(place, layout);
  if (wider) await Plotly.react(place, data, wider, config);
}

/** An axis with fewer labels if they would touch each other. */
function thinned(axis, width) {
  const every = Math.ceil((axis?.ticktext?.length ?? 0) * TICK_LABEL_PIXELS / width);
  if (every < 2) return axis;
  const few = (values) => values.filter((_, place) => place % every === 0);
  return { ...axis, tickvals: few(axis.tickvals), ticktext: few(axis.ticktext) };
}

/** A figure for a narrow place: labels of rows are above their bars if they would take most of the width. */
function forWidth({ data, layout: given }, width) {
  const layout = { ...given, xaxis: thinned(given.xaxis, width - given.margin.l) };
  const labels = layout.yaxis?.ticktext;
  if (!labels || layout.margin.l <= MOST_LABEL_SHARE * width) return { data, layout };
  return {
    data: data.map((trace) => (trace.type === "bar" ? { ...trace, width: 0.4, offset: 0.04 } : trace)),
    layout: {
      ...layout,
      height: layout.height + NARROW_ROW_PIXELS * labels.length,
      margin: { ...layout.margin, l: LEAST_MARGIN },
      yaxis: { ...layout.yaxis, ticklabelposition: "inside", ticklabelshift: NARROW_ROW_PIXELS / 2 },
    },
  };
}

/** The names of a flame graph's blocks, shortened to the width of each; "" where not even a part fits. */
function fittingNames(labels, values, whole, width) {
  const perValue = width / (whole || 1);
  return labels.map((label, place) => {
    const letters = Math.floor((values[place] * perValue - BESIDE_NAME) / LETTER_PIXELS);
    const text = label.replaceAll(/&(lt|gt|amp);/g, (_, name) => ({ lt: "<", gt: ">", amp: "&" })[name]);
    if (text.length <= letters) return label;
    if (letters < LEAST_LETTERS) return "";
    const cut = `${text.slice(0, letters - 1)}…`;
    return cut.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  });
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
