"use strict";
/* The page's address holds the state of the view: `#at=timeline&page=1f…&time=4.1..8.3&call=0:92`.

   Each part of the view is a field of one table (fields.js): its name, the section it belongs to ("" for none),
   `read` (its current text, "" for the initial view), `parse` (the value of a text; throws a
   RangeError with the reason if there is none) and `apply`. Addresses are untrusted: a field that does
   not parse, or that was made on the page of another run, is omitted and reported. */

const LONGEST_ADDRESS = 8000;
const LONGEST_SHOWN = 60;
const GESTURE_MS = 700; // changes of the same fields that follow this closely are one step back
const SETTLED_MS = 150;

/** Encodes a value for the address; characters that need no escape stay readable. */
function encodedValue(text) {
  return encodeURIComponent(text)
    .replace(/%(2C|3A|2F)/g, (code) => decodeURIComponent(code))
    .replaceAll("%20", "+");
}

function decodedValue(text) {
  try {
    return decodeURIComponent(text.replaceAll("+", " "));
  } catch {
    throw new RangeError("it is not text");
  }
}

/** Parses an address into names and values; each name occurs once. */
function addressParts(hash) {
  const text = hash.replace(/^#/, "");
  if (text.length > LONGEST_ADDRESS) throw new RangeError("it is too long");
  if (text && !text.includes("=")) return new Map([["at", text]]); // an anchor: #tables
  const parts = new Map();
  for (const pair of text.split("&").filter(Boolean)) {
    const place = pair.indexOf("=");
    const name = pair.slice(0, Math.max(place, 0));
    if (!parts.has(name)) parts.set(name, pair.slice(place + 1));
  }
  return parts;
}

class Address {
  constructor(page, fields, onRefused) {
    Object.assign(this, { page, fields, onRefused });
    this.sections = [...document.querySelectorAll("[id]:is(section, .pair)")].map(({ id }) => id);
    this.at = "";
    this.isFollowing = false;
    this.touched = new Set();
    this.gesture = { names: "", until: -Infinity };
    window.addEventListener("popstate", () => this.follow());
    document.addEventListener("click", (event) => this.clicked(event));
  }

  /** The state of the view, as an address. */
  text() {
    const held = this.fields.map(({ name, read }) => [name, read()]).filter(([, text]) => text);
    const parts = [["at", this.at], ["page", held.length ? this.page : ""], ...held];
    const shown = parts.filter(([, text]) => text).map(([name, text]) => `${name}=${encodedValue(text)}`);
    return shown.length ? `#${shown.join("&")}` : "";
  }

  /** Called by each part of the page whose field has changed; simultaneous changes are one step of the history. */
  changed(name) {
    // An address that is being applied changes fields, which must not write it again.
    if (this.isFollowing) return;
    if (!this.touched.size) queueMicrotask(() => this.write());
    this.touched.add(name);
  }

  write() {
    const names = [...this.touched].sort().join();
    const first = this.fields.find((field) => this.touched.has(field.name));
    if (first?.section) this.at = first.section;
    this.touched.clear();
    const now = performance.now();
    const goesOn = names === this.gesture.names && now < this.gesture.until;
    this.gesture = { names, until: now + GESTURE_MS };
    if (!goesOn) {
      this.settle();
      this.record("pushState", this.text());
      return;
    }
    clearTimeout(this.timer);
    this.unsettled = this.text();
    this.timer = setTimeout(() => this.settle(), SETTLED_MS);
  }

  /** Writes the current state of a gesture in progress. */
  settle() {
    clearTimeout(this.timer);
    if (this.unsettled !== undefined) this.record("replaceState", this.unsettled);
    this.unsettled = undefined;
  }

  record(how, text) {
    if (text === (this.written ?? location.hash)) return;
    this.written = text;
    window.history[how](null, "", text || location.href.split("#")[0]);
  }

  /** Keeps the view when a link within the page is followed. */
  clicked(event) {
    const link = event.target.closest("a[href^='#']");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    this.go(link.getAttribute("href").slice(1));
  }

  go(id) {
    const section = document.getElementById(id);
    if (!section) return;
    section.scrollIntoView();
    section.focus({ preventScroll: true }); // of the link that skips to the content
    if (!this.sections.includes(id)) return;
    this.settle();
    this.at = id;
    this.gesture.names = "";
    this.record("pushState", this.text());
  }

  /** Applies the address; `isArrival` if it was opened, false if reached by Back or Forward. */
  follow(isArrival = false) {
    clearTimeout(this.timer);
    this.unsettled = undefined;
    const { values, refused } = this.parsed(location.hash);
    this.written = location.hash;
    this.at = values.get("at") || "";
    this.gesture.names = "";
    this.isFollowing = true;
    for (const { name, read, parse, apply } of this.fields) {
      const before = read();
      if (!values.has(name) && before) apply(parse(""));
      else if (values.has(name)) apply(values.get(name));
    }
    this.isFollowing = false;
    this.onRefused(refused);
    if (isArrival && this.at) document.getElementById(this.at).scrollIntoView({ behavior: "instant" });
  }

  /** The value of each field of an address, and the fields that cannot be applied. */
  parsed(hash) {
    const values = new Map();
    const refused = [];
    const known = new Map([
      ["at", (text) => oneOf(this.sections, "a section of this page")(text)],
      ...this.fields.map(({ name, parse }) => [name, parse]),
    ]);
    let parts = new Map();
    try {
      parts = addressParts(hash);
    } catch (error) {
      refused.push(`the address: ${error.message}`);
    }
    const page = parts.get("page");
    parts.delete("page");
    if (page !== undefined && page !== this.page) {
      return { values, refused: ["it was made on the page of another run"] };
    }
    for (const [name, text] of parts) {
      const part = `${name}=${text}`.slice(0, LONGEST_SHOWN);
      try {
        if (!known.has(name)) throw new RangeError("there is no such part");
        values.set(name, known.get(name)(decodedValue(text)));
      } catch (error) {
        // A defect of the page must not pass for a bad address.
        if (!(error instanceof RangeError)) throw error;
        refused.push(`${part}: ${error.message}`);
      }
    }
    return { values, refused };
  }
}

/** A parser that accepts the empty text and the given texts. */
function oneOf(texts, what) {
  return (text) => {
    if (text && !texts.includes(text)) throw new RangeError(`it is not ${what}`);
    return text;
  };
}
/** Escapes a name of the trace as a part of a path, whose parts are separated by slashes. */
function escapedName(name) {
  return name.replaceAll("~", "~0").replaceAll("/", "~1");
}

function unescapedName(text) {
  return text.replaceAll("~1", "/").replaceAll("~0", "~");
}
