"use strict";
/* Sections that describe one call, as in `commtrace explain`. */

const PEERS_AT_ONCE = 12;
const MOST_NAMED = 8;

/** One line of a section: a title, and text or elements; `meaning` is its tooltip. */
function storyLine(term, content, { code = false, meaning = "" } = {}) {
  const name = element("dt", "", term);
  name.title = meaning;
  const parts = Array.isArray(content) ? content : [content];
  return element("div", "", name, element("dd", code ? "code" : "", ...parts));
}

function listed(values) {
  const more = values.length > MOST_NAMED ? ` and ${values.length - MOST_NAMED} more` : "";
  return values.slice(0, MOST_NAMED).join(", ") + more;
}

class Story {
  /** `open` shows another call, `filter` filters by module, `show` opens a finding. */
  constructor(calls, facts, row, { open, filter, show }) {
    Object.assign(this, { calls, facts, row, open, filter, show });
    this.meeting = meetingOf(calls, row, facts.groups, facts.shown_ranks);
    this.site = calls.site[row];
  }

  value(name) {
    return this.calls.value(this.row, name);
  }

  has(name) {
    return !["", null].includes(this.value(name));
  }

  text(name) {
    return formatted(this.value(name), this.calls.byName.get(name));
  }

  /** A line with the value of a column; null if it is unknown. */
  column(name, more = {}) {
    if (!this.has(name)) return null;
    const { title, meaning } = this.calls.byName.get(name);
    return storyLine(title.toLowerCase(), this.text(name), { meaning, ...more });
  }

  chapters() {
    const chapters = [
      ["", this.reason()],
      ["Where", this.where()],
      ["Why", this.why()],
      ["Layouts considered, by cost", this.candidates()],
      ["Steps of the redistribution", this.steps()],
      ["What was sent", this.sent()],
      ["When", this.when()],
      ["Peers, by arrival", this.peers()],
      ["Findings for this call", this.findings()],
      ["Not known", this.unknown()],
    ];
    return chapters.flatMap(([title, parts]) => {
      const lines = parts.filter(Boolean);
      if (!lines.length) return [];
      const isList = lines.some((line) => line.firstElementChild?.tagName === "DT");
      const body = isList ? this.lists(lines) : lines;
      return title ? [element("h3", "", title), ...body] : body;
    });
  }

  /** Groups adjacent lines into lists; other elements stay between the lists. */
  lists(parts) {
    const found = [];
    for (const part of parts) {
      const isLine = part.firstElementChild?.tagName === "DT";
      if (!isLine) found.push(part);
      else if (found.at(-1)?.tagName === "DL") found.at(-1).append(part);
      else found.push(element("dl", "", part));
    }
    return found;
  }

  reason() {
    return this.has("reason") ? [element("p", "reason", this.value("reason"))] : [];
  }

  where() {
    const line = this.has("source_line") ? `:${this.value("source_line")}` : "";
    const inside = this.has("source_function") ? ` in ${this.value("source_function")}` : "";
    const via = this.has("via") ? `, via ${this.value("via")}` : "";
    const alike = countAlike(this.calls, this.row);
    return [
      this.has("source_file") && storyLine("line", `${this.value("source_file")}${line}${inside}${via}`, { code: true }),
      this.source(),
      this.stack(),
      this.module(),
      this.column("region"),
      this.has("stage") && storyLine("pipeline", `stage ${this.value("stage")}, micro-batch ${this.value("micro_batch")}, ${this.value("direction")}`),
      storyLine("step", `${this.text("step")}${this.has("phase") ? `, ${this.value("phase")}` : ""}`),
      alike > 1 && storyLine("alike", `one of ${alike.toLocaleString("en")} such calls of rank ${this.value("rank")} from here${this.facts.is_whole ? "" : ", on this page"}`),
    ];
  }

  /** The source lines around the call, as recorded. */
  source() {
    const [file, line] = [this.value("source_file"), this.value("source_line")];
    const holds = (each) => each.file === file && each.line <= line && line < each.line + each.text.split("\n").length;
    const found = this.facts.sources.find(holds);
    if (!found) return null;
    const first = Math.max(found.line, line - this.facts.margin);
    const texts = found.text.split("\n").slice(first - found.line, line + this.facts.margin + 1 - found.line);
    const indents = texts.filter((text) => text.trim()).map((text) => text.length - text.trimStart().length);
    const indent = indents.length ? Math.min(...indents) : 0;
    const code = element("pre", "source", ...texts.map((text, place) => {
      const isThis = first + place === line;
      const number = element("span", "number", String(first + place));
      return element("span", isThis ? "line this" : "line", number, text.slice(indent));
    }));
    code.tabIndex = 0;
    code.setAttribute("aria-label", `Source lines around line ${line}`);
    return code;
  }

  stack() {
    const lines = (this.value("stack") || "").split("\n").filter(Boolean);
    if (!lines.length) return null;
    const text = element("pre", "source", lines.join("\n"));
    return element("details", "stack", element("summary", "", `Stack of ${lines.length} frames`), text);
  }

  module() {
    const call = this.has("module_call") ? `, call ${this.value("module_call")}` : "";
    const named = this.has("module_class") ? ` (${this.value("module_class")}${call})` : "";
    if (!this.has("module")) return storyLine("module", named ? `the outermost module${named}` : "outside of any module");
    const button = element("button", "link", this.value("module"));
    button.type = "button";
    button.title = "Show only the calls of this module";
    button.addEventListener("click", () => this.filter(this.value("module")));
    return storyLine("module", [button, named]);
  }

  why() {
    const names = (this.value("parameters") || "").split(",").filter(Boolean);
    const around = (this.value("operators") || "").split("\n").filter((name) => name && name !== this.value("op"));
    const isSame = this.value("source_spec") === this.value("target_spec");
    const layout = (term, name) => this.has(name) && storyLine(term, [
      this.value(name), element("small", "", this.facts.layouts[this.value(name)] || "")], { code: true });
    return [
      this.has("carries") && storyLine("carries", `${this.value("carries")}${names.length ? ` of ${listed(names)}` : ""}`),
      this.column("op", { code: true }),
      around.length > 0 && storyLine("inside of", around.join(", "), { code: true }),
      this.has("argument") && storyLine("argument", this.value("argument"), { code: true }),
      layout(isSame ? "works on" : "from", "source_spec"),
      !isSame && layout("to", "target_spec"),
    ];
  }

  /** The candidate layouts; the first one of each axis was chosen. */
  candidates() {
    let list = [];
    try {
      list = JSON.parse(this.value("candidates") || "[]");
    } catch {
      return [];
    }
    if (!Array.isArray(list)) return [];
    const axes = new Set();
    return list.filter(Array.isArray).map(([layout, seconds]) => {
      const [axis] = String(layout).includes(": ") ? String(layout).split(": ") : [""];
      const chosen = axes.has(axis) ? "" : ", chosen";
      axes.add(axis);
      const cost = typeof seconds === "number" ? FORMATS.ns(1e9 * seconds) : NOT_KNOWN;
      return storyLine(`${cost}${chosen}`, String(layout), { code: true });
    });
  }

  steps() {
    const rows = redistributionOf(this.calls, this.row);
    if (rows.length < 2) return [];
    return rows.map((row, place) => {
      const value = (name) => this.calls.value(row, name);
      const along = value("mesh_axis") ? ` on ${value("mesh_axis")}` : "";
      const size = formatted(value("payload_bytes"), this.calls.byName.get("payload_bytes"));
      return storyLine(`${place + 1}.`, [this.link(row), ` ${value("kind")}${along}, ${size}`]);
    });
  }

  sent() {
    const { group } = this.meeting;
    const shapes = [this.value("input_shapes") || "nothing", this.value("output_shapes") || "nothing"];
    const hasShapes = this.has("input_shapes") || this.has("output_shapes");
    const ranks = group && group.ranks.length ? `${group.ranks.length} ranks: ${listed(group.ranks)}` : "members not known";
    const isTransfer = TRANSFERS.includes(this.value("kind"));
    const number = this.calls.own.number[this.row];
    const wasPlanned = this.has("planned_bytes") && this.value("planned_bytes") !== this.value("payload_bytes");
    return [
      storyLine("operator", this.value("native_op") || this.value("kind"), { code: true }),
      this.column("reduce_op"),
      this.value("is_async") && storyLine("asynchronous", "yes"),
      (hasShapes || this.has("dtype")) && storyLine("tensors",
        `${this.value("dtype") || ""} ${hasShapes ? shapes.join(" → ") : ""}`.trim(), { code: true }),
      storyLine("payload", this.text("payload_bytes")),
      storyLine("sent", `${this.text("wire_bytes")}${this.has("wire_bytes") ? ` by this rank${isTransfer ? "" : ", in a ring"}` : ""}`),
      wasPlanned && storyLine("planned", this.text("planned_bytes")),
      this.has("root") && storyLine("root", `rank ${this.value("root")}`),
      this.has("peer") && storyLine(this.value("kind") === "send" ? "to" : "from", `rank ${this.value("peer")}`),
      this.has("group") && storyLine("group", `${this.value("mesh_axis") || this.value("group")} (${ranks}${group && group.backend ? `, ${group.backend}` : ""})`),
      number >= 0 && !isTransfer && storyLine("number", `collective ${number} of the group`),
    ];
  }

  when() {
    const [issued, ended] = [this.value("issue_ns"), this.calls.own.end_ns[this.row]];
    const [complete, blocked] = [this.value("complete_ns"), this.value("blocked_ns")];
    const isKnown = issued !== null && ((complete !== null && complete >= issued) || blocked !== null);
    const lasted = isKnown ? ended - issued : null;
    const hidden = lasted !== null && blocked !== null ? Math.max(lasted - blocked, 0) : 0;
    const forWhom = this.value("last_rank") === this.value("rank") ? ": it was the last to arrive" : ` for rank ${this.value("last_rank")}`;
    const wait = this.value("wait_ns");
    return [
      issued !== null && storyLine("began", `${this.text("issue_ns")} after the start`),
      lasted !== null && storyLine("took", FORMATS.ns(lasted)),
      storyLine("blocked", blocked === null ? "not known" : `${FORMATS.ns(blocked)}${hidden > 0 ? `, ${FORMATS.ns(hidden)} overlapped` : ""}`),
      wait !== null && storyLine("waited", `${FORMATS.ns(wait)}${this.has("last_rank") ? forWhom : ""}`),
      this.has("transfer_ns") && storyLine("transfer", `${this.text("transfer_ns")}, after all had arrived`),
      this.slack(),
      this.bandwidth(lasted),
    ];
  }

  slack() {
    const slack = this.value("slack_ns");
    if (slack === null) return null;
    return storyLine("slack", slack === 0 ? "none: if it takes longer, so does the run" : `could take ${FORMATS.ns(slack)} longer before the run does`);
  }

  bandwidth(lasted) {
    const payload = this.value("payload_bytes");
    if (!(lasted > 0) || !(payload > 0)) return null;
    const algbw = payload / (lasted / 1e9);
    const factor = this.meeting.group?.busbw[this.value("kind")];
    const busbw = factor === undefined ? "" : `, ${FORMATS["bytes/s"](algbw * factor)} busbw`;
    return storyLine("bandwidth", `${FORMATS["bytes/s"](algbw)} algbw${busbw}`);
  }

  peers() {
    const { peers, missing, unseen } = this.meeting;
    const differing = peers.filter((peer) => peer.differs).map((peer) => this.calls.own.rank[peer.row]);
    const last = peers.at(-1);
    const parts = [];
    if (missing.length) {
      const arrived = `${peers.length} of ${peers.length + missing.length} arrived`;
      parts.push(element("p", "bad", `${arrived}; no call of rank ${listed(missing)} is in the trace`));
    }
    if (unseen.length) parts.push(element("p", "", `The calls of rank ${listed(unseen)} are not on this page`));
    if (differing.length) parts.push(element("p", "bad", `Rank ${listed(differing)} made another call`));
    if (peers.length < 2) return parts;
    if (last.isLast) {
      parts.push(element("p", "", `Rank ${this.calls.own.rank[last.row]} was the last to arrive, ${FORMATS.ns(last.after)} after the first`));
    } else if (last.after === 0) parts.push(element("p", "", "All arrived at once"));
    const late = peers.map((peer) => this.facts.lateness[this.nameOf(peer.row)]).find(Boolean);
    if (late) parts.push(element("p", "", late[0].toUpperCase() + late.slice(1)));
    return [...parts, this.arrivals(peers)];
  }

  /** Each peer's arrival and wait, and the remaining transfer time. */
  arrivals(peers) {
    const head = ["call", "arrived", "blocked", "waited", "transfer"];
    const line = (peer) => {
      const text = (name) => formatted(this.calls.value(peer.row, name), { name, unit: "ns" });
      const said = [peer.isThis && "this call", peer.isLast && "last", peer.differs].filter(Boolean).join(", ");
      const name = element("td", "", peer.isThis ? this.nameOf(peer.row) : this.link(peer.row));
      if (said) name.append(element("small", "", said));
      const arrived = peer.after === null ? NOT_KNOWN : `+${FORMATS.ns(peer.after)}`;
      const cells = [arrived, text("blocked_ns"), text("wait_ns"), text("transfer_ns")];
      return element("tr", peer.isThis ? "this" : "", name, ...cells.map((cell) => element("td", "number", cell)));
    };
    const heads = head.map((name, place) => element("th", place ? "number" : "", name));
    const body = element("tbody", "", ...this.few(peers).map(line));
    const table = element("table", "arrivals", element("thead", "", element("tr", "", ...heads)), body);
    if (peers.length <= PEERS_AT_ONCE) return table;
    const more = element("button", "quiet", `Show all ${peers.length}`);
    more.type = "button";
    more.addEventListener("click", () => {
      body.replaceChildren(...peers.map(line));
      more.remove();
    });
    return element("div", "", table, more);
  }

  /** A selection of many peers: this one, those that differ, the last to arrive, and then the first. */
  few(peers) {
    const places = peers.map((_, place) => place);
    const wanted = places.filter((place) => peers[place].isThis || peers[place].differs);
    wanted.push(...places.slice(-PEERS_AT_ONCE / 2).reverse(), ...places);
    const chosen = [...new Set(wanted)].slice(0, PEERS_AT_ONCE).sort((a, b) => a - b);
    return chosen.map((place) => peers[place]);
  }

  findings() {
    const numbers = this.calls.store.finding_sets[this.calls.own.found[this.row]] || [];
    return numbers.map((number) => {
      const { rule, title, advice, card } = this.facts.findings[number];
      const parts = [element("p", "rule", rule.replaceAll("_", " ")), element("p", "", title), element("p", "advice", advice)];
      if (card >= 0) {
        const button = element("button", "link", "Show the finding");
        button.type = "button";
        button.addEventListener("click", () => this.show(card));
        parts.push(button);
      }
      return element("div", "found", ...parts);
    });
  }

  unknown() {
    const { texts } = this.facts;
    const said = (this.value("unknown") || "").split("\n").filter(Boolean);
    if (!this.has("source_file")) said.push(texts.no_source);
    if (this.value("complete_ns") === null) said.push(texts.no_end);
    if (this.value("wait_ns") === null) {
      const { missing } = this.meeting;
      const why = missing.length ? `the call of rank ${listed(missing)} is not in the trace` : texts.no_peers;
      said.push(`${texts.no_wait}: ${why}.`);
    }
    return said.map((text) => element("p", "", text));
  }

  nameOf(row) {
    return `${this.calls.own.rank[row]}:${this.calls.own.id[row]}`;
  }

  /** A link that opens a call. */
  link(row) {
    const button = element("button", "link", this.nameOf(row));
    button.type = "button";
    button.setAttribute("aria-label", `Open call ${this.calls.own.id[row]} of rank ${this.calls.own.rank[row]}`);
    button.addEventListener("click", () => this.open(row));
    return button;
  }
}
