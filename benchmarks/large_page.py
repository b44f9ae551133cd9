"""The page of a million calls over 64 ranks: how long it takes to write, to open and to use.

    python -m benchmarks.large_page --calls 1000000 --ranks 64

`commtrace report` runs in a process of its own, whose total time and peak memory are measured; a
headless Chromium then opens the page as for a reader and performs a reader's actions: zooms the
timeline from the whole run to single calls, switches a kind off, searches and sorts the table of
all calls. Each is timed from the click to the next frame after the work; of several, the slowest
counts.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.large_run import Plan, large_trace
from commtrace.tracefile import write_trace
from commtrace.units import text_of_bytes, text_of_duration

BARS: dict[str, tuple[float, str]] = {
    "load into tables": (3.0, "s"),
    "write the page": (10.0, "s"),
    "peak memory": (2e9, "B"),
    "size": (15e6, "B"),
    "open": (1.5, "s"),
    "zoom": (2.0, "s"),
    "filter": (2.0, "s"),
}
"""Bars of the measured figures: (upper limit, unit)."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
REPEATS = 5

_LOAD = """
import sys, time
from commtrace.analyze import load
begin = time.perf_counter()
load(sys.argv[1])
print(time.perf_counter() - begin)
"""

_ACT = """
async ([act, until]) => {
  const frame = () => new Promise((resume) => requestAnimationFrame(() => setTimeout(resume)));
  const state = () => {
    const picture = document.getElementById("timeline-picture");
    return until === "timeline"
      ? `${picture.layout.xaxis.range} ${picture.data.length} ${picture.layout.images.length}`
        + picture.layout.images.map((image) => image.source).join("")
      : document.getElementById("table").innerText;
  };
  const before = state();
  const begin = performance.now();
  const [what, where, text] = act;
  const element = document.querySelector(where);
  if (what === "type") {
    element.value = text;
    element.dispatchEvent(new Event("input"));
  } else if (what === "choose") {
    element.value = text;
    element.dispatchEvent(new Event("change"));
  } else {
    element.click();
  }
  do await frame(); while (state() === before);
  return performance.now() - begin;
}
"""

_ZOOMS = (
    ("click", "#whole", ""),
    *(("click", "#closer", ""),) * 5,
    ("choose", "#step", "3"),
    ("click", "#wider", ""),
)
_FILTERS = (
    ("timeline", ("click", "#whole", "")),
    ("timeline", ("click", "#legend button", "")),
    ("timeline", ("click", "#legend button", "")),
    ("table", ("click", "#tab-calls", "")),
    ("table", ("type", "#search", "layers.3 all_gather")),
    ("table", ("type", "#search", "rank:5 step:7")),
    ("table", ("type", "#search", "")),
    ("table", ("click", "th[data-name=wait_ns] button", "")),
    ("table", ("type", "#search", "reduce")),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured figure, in the unit of its bar."""

    name: str
    value: float

    @property
    def is_met(self) -> bool:
        """True if the value is below its bar."""
        return self.value < BARS[self.name][0]

    @property
    def text(self) -> str:
        """The value with its unit."""
        return text_of(self.value, BARS[self.name][1])


def text_of(value: float, unit: str) -> str:
    """Format seconds or bytes with a readable unit."""
    return text_of_duration(1e9 * value) if unit == "s" else text_of_bytes(value)


def written(trace: Path, page: Path) -> list[Measured]:
    """Measure loading the trace and writing the page: time, peak memory and size."""
    loaded = subprocess.run(
        [sys.executable, "-c", _LOAD, str(trace)], check=True, capture_output=True, text=True
    )
    command = [sys.executable, "-m", "commtrace_cli", "report", str(trace), "-o", str(page)]
    begin = time.perf_counter()
    writer = subprocess.Popen([*command, "--force"], stderr=subprocess.DEVNULL)
    _, status, resources = os.wait4(writer.pid, 0)
    took = time.perf_counter() - begin
    writer.returncode = os.waitstatus_to_exitcode(status)
    if writer.returncode:
        raise SystemExit(f"commtrace report failed: {writer.returncode}")
    return [
        Measured("load into tables", float(loaded.stdout)),
        Measured("write the page", took),
        Measured("peak memory", _bytes(resources)),
        Measured("size", page.stat().st_size),
    ]


def _bytes(resources: resource.struct_rusage) -> float:
    return resources.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def in_chromium(page: Path) -> tuple[list[Measured], dict[str, float]]:
    """Run `used` on the page in a headless Chromium."""
    from playwright.sync_api import sync_playwright

    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        raise SystemExit("no Chromium found: install one (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found)
        measured = used(browser, page)
        browser.close()
    return measured


def used(browser: Any, page: Path) -> tuple[list[Measured], dict[str, float]]:
    """Measure opening, zooming and filtering.

    Returns:
        The figures that have a bar, and all timings by name, in seconds.
    """
    starts = [_opening(browser, page) for _ in range(REPEATS)]
    shown = _page(browser, page)
    details = {name: statistics.median(each[name] for each in starts) / 1e3 for name in starts[0]}
    zooms = _timed(shown, [("timeline", act) for act in _ZOOMS], "zoom", details)
    filters = _timed(shown, _FILTERS, "filter", details)
    shown.close()
    return [
        Measured("open", details["opened"]),
        Measured("zoom", max(zooms)),
        Measured("filter", max(filters)),
    ], details


def _page(browser: Any, page: Path) -> Any:
    shown = browser.new_page(viewport={"width": 1400, "height": 1000}, reduced_motion="reduce")
    shown.goto(page.as_uri())
    shown.wait_for_selector("html[data-ready]", state="attached", timeout=120_000)
    return shown


def _opening(browser: Any, page: Path) -> dict[str, float]:
    """Return the ms until the page is `opened` and `ready`, in a tab without a debugger.

    With a debugger, such as Playwright's, Chromium looks up the source lines of every exception
    that plotly.js throws and catches while it loads, which readers do not wait for.
    """
    session, found = browser.new_browser_cdp_session(), {}

    def keep(event: Any) -> None:
        answer = json.loads(event["message"])
        # Without a value before the document has begun.
        found.update(answer.get("result", {}).get("result", {}).get("value", {}))

    session.on("Target.receivedMessageFromTarget", keep)
    size = {"width": 1400, "height": 1000, "newWindow": True}
    tab = session.send("Target.createTarget", {"url": page.as_uri(), **size})
    attached = session.send("Target.attachToTarget", {**tab, "flatten": False})
    question = {"expression": "({...document.documentElement?.dataset})", "returnByValue": True}
    message = json.dumps({"id": 1, "method": "Runtime.evaluate", "params": question})
    until = time.monotonic() + 120
    while "ready" not in found:
        if time.monotonic() > until:
            raise SystemExit(f"{page} was not ready after two minutes")
        session.send("Target.sendMessageToTarget", {**attached, "message": message})
        time.sleep(0.1)
    session.send("Target.closeTarget", tab)
    session.detach()
    return {name: float(found[name]) for name in ("opened", "ready")}


def _timed(shown: Any, acts: Any, name: str, details: dict[str, float]) -> list[float]:
    found = []
    for until, act in acts:
        seconds = shown.evaluate(_ACT, [list(act), until]) / 1e3
        found.append(seconds)
        details[f"{name}: {' '.join(filter(None, act))} ({len(found)})"] = seconds
    return found


def main() -> None:
    """Create the run and its page, and print the measurements beside their bars."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_page", description=__doc__)
    parser.add_argument("--calls", type=int, default=1_000_000, help="default: %(default)s")
    parser.add_argument("--ranks", type=int, default=64, help="a multiple of 8; default: 64")
    parser.add_argument("--all", action="store_true", help="print each thing that was timed")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace, page = Path(folder, "run.json"), Path(folder, "report.html")
        write_trace(large_trace(Plan(num_ranks=given.ranks, num_calls=given.calls)), trace)
        measured = written(trace, page)
        in_browser, details = in_chromium(page)
    measured += in_browser
    table = Table("", "measured", "bar", title=f"{given.calls:,} calls over {given.ranks} ranks")
    for each in measured:
        bar = text_of(*BARS[each.name])
        table.add_row(each.name, each.text, f"< {bar}", style="" if each.is_met else "bold red")
    Console(width=None if sys.stdout.isatty() else 100).print(table)
    if given.all:
        for name, seconds in details.items():
            print(f"{seconds:8.3f} s  {name}")
    sys.exit(not all(each.is_met for each in measured))


if __name__ == "__main__":
    main()
