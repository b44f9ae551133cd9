"use strict";
/* Unpacks the embedded data, then makes the page interactive. */

/** Resolves when the document is loaded: the calls come last, after the script. */
function wholePage() {
  if (document.readyState !== "loading") return Promise.resolve();
  return new Promise((resume) => document.addEventListener("DOMContentLoaded", resume));
}

/** Yields, so that the browser renders the page so far. */
function aMoment() {
  return new Promise((resume) => setTimeout(resume));
}

/** Runs a script whose hash is in the page's content security policy. */
function run(source) {
  const script = document.createElement("script");
  script.textContent = source;
  document.head.append(script);
}

/** The page's parts, which call `changed` with the name of the address field that they changed. */
class Page {
  constructor(data) {
    this.data = data;
    this.keys = new Keys();
    this.pictures = [];
    const changed = this.changed = (name) => this.address?.changed(name);
    this.themes = new Themes(data.dark, changed);
    this.themes.onDraw = () => this.pictures.forEach((each) => each.draw(this.colours));
    const steps = data.tables.find((table) => table.name === "by_step").data.step;
    const modules = data.tables.find((table) => table.name === "by_module").data.module;
    this.tables = new Tables(data, {
      calls: (row) => this.detail.open(row),
      by_step: (place) => this.timeline?.showNumber(steps[place]),
      critical_path: (place) => this.path?.show(place),
      by_module: (place) => this.showModule(modules.strings[modules.codes[place]]),
    }, changed);
  }

  get colours() {
    return this.themes.colours[this.themes.name];
  }

  async add(picture) {
    this.pictures.push(picture);
    await picture.draw(this.colours);
  }

  /** Starts the flame graph, which is visible first. */
  async drawFlame() {
    this.flame = new Flame(this.data, this.keys, this.changed);
    await this.add(this.flame);
  }

  /** Starts the parts that need the calls. */
  async drawCalls(calls) {
    const { data, changed } = this;
    this.tables.add("calls", calls);
    if (this.flame) {
      this.timeline = new Timeline(data.timeline, calls, data.known, (row) => this.detail.open(row), changed);
      const rows = new Rows(data.tables.find((table) => table.name === "critical_path"));
      this.path = new CriticalPath(rows, calls, this.timeline, (row) => this.detail.open(row), changed);
      this.steering = new Steering(this.timeline, this.keys, (row) => this.detail.open(row));
      this.cards = new Cards(calls, this.timeline, changed);
      this.filter = new ModuleFilter(calls, () => {
        this.timeline.redraw();
        this.tables.refresh();
        changed("module");
      });
    }
    this.detail = new Detail({
      calls,
      facts: data.call_facts,
      timeline: this.timeline || null,
      filter: (module) => this.showModule(module),
      showFinding: (card) => this.cards.reveal(card),
      onChange: changed,
    });
    if (!this.flame) return;
    await this.add(this.timeline);
    for (const [name, figure] of Object.entries(data.patterns)) {
      if (figure.layout.meta?.lacking) continue; // the page has a text in its place
      await aMoment();
      await this.add(new Pattern(name, figure));
    }
    offerPictures();
  }

  /** Filters the timeline and the table of calls by module. */
  showModule(module) {
    if (!this.filter) return;
    this.filter.set(module);
    this.timeline.bringIntoView(0);
  }

  /** Connects address and view in both directions. */
  followAddress() {
    this.keys.add("Everywhere", null, [
      { keys: ["?"], does: "show or hide this list", act: () => this.keys.toggleHelp() },
      { keys: ["/"], does: "search the tables", act: () => this.tables.search.focus() },
      { keys: ["Escape"], does: "close what is open: a call, marks, a filter", act: () => this.closeOne() },
    ]);
    const note = new LinkNote();
    this.address = new Address(this.data.fingerprint, viewFields(this), (refused) => note.show(refused));
    this.address.follow(true);
  }

  closeOne() {
    if (this.detail.close()) return true;
    if (this.cards?.shown) return this.cards.close();
    if (this.path?.isShown) return this.path.close();
    if (this.timeline?.selected >= 0) return this.timeline.select(-1);
    return this.filter?.module ? this.filter.set("") : false;
  }
}

async function start() {
  if (!("DecompressionStream" in window)) {
    const text = "This browser is too old to unpack the page; any of the last three years will do.";
    document.getElementById("overview").append(element("p", "notices", text));
    return;
  }
  const stored = storedTheme();
  if (THEME_NAMES.includes(stored)) document.documentElement.dataset.theme = stored;
  const data = await unpacked("packed-data").json();
  const page = new Page(data);
  if (document.getElementById("flame-picture")) {
    await aMoment(); // numbers and tables are painted by now
    run(await unpacked("packed-plotly").text());
    await page.drawFlame();
    await aMoment();
  }
  // The visible parts are rendered, after so many ms; the calls load next.
  document.documentElement.dataset.opened = Math.round(performance.now());
  await wholePage();
  const bytes = new Uint8Array(await unpacked("packed-calls").arrayBuffer());
  await page.drawCalls(new Calls(data.tables.find((table) => table.name === "calls"), bytes));
  page.followAddress();
  document.documentElement.dataset.ready = Math.round(performance.now());
}

start();
