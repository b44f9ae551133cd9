"""No page of any kind has a serious fault that axe-core knows, at any width, in either theme."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from axe_playwright_python.sync_playwright import Axe

from commtrace.analyze import Frames, load
from commtrace.analyze.values import compare
from commtrace.live import Observer
from commtrace.report import write_comparison, write_diff, write_report
from commtrace.report.live_page import live_state, render_live_page
from commtrace.report.picture import write_flame, write_timeline
from commtrace_cli.serving import serving
from dtensor_core import Shard
from tests.commtrace.analyze.rows import run_of
from tests.commtrace.analyze.training import training_trace
from tests.commtrace.analyze.values.rows import held_by_one, sharded
from tests.commtrace.live.growing import Run
from tests.commtrace.report.browsing import Open
from tests.commtrace.report.test_values_page import values
from tests.commtrace.synthetic import write_synthetic_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SERIOUS = ("serious", "critical")


def faults(page: Page) -> list[tuple[str, str]]:
    """Serious faults of a page as it is shown: the rule, and the element."""
    found = Axe().run(page).response["violations"]
    return [
        (each["id"], node["html"][:120])
        for each in found
        if each["impact"] in SERIOUS
        for node in each["nodes"]
    ]


def training() -> Frames:
    return load(training_trace())


def diff(path: Path) -> Path:
    runs = [
        load(write_synthetic_run(path.parent / f"{num_layers}.json", num_layers=num_layers))
        for num_layers in (2, 3)
    ]
    return write_diff(runs, path)


def comparison(path: Path) -> Path:
    right, wrong = held_by_one(values()), sharded(values(factor=4.0), [Shard(0)], {"tp": 4})
    return write_comparison(compare(right, wrong), right, wrong, path)


PAGES: dict[str, Callable[[Path], Any]] = {
    "report": lambda path: write_report(training(), path),
    "report of nothing": lambda path: write_report(run_of(), path),
    "flame": lambda path: write_flame(training(), path),
    "timeline": lambda path: write_timeline(training(), path),
    "diff": diff,
    "compare": comparison,
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("kind", PAGES)
def test_no_page_has_a_serious_fault(
    open_page: Open, tmp_path: Path, kind: str, width: int, scheme: str
) -> None:
    PAGES[kind](tmp_path / "page.html")
    look = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    assert faults(open_page(tmp_path / "page.html", **look).page) == []


def test_no_state_of_the_page_of_a_run_has_a_serious_fault(page: Page) -> None:
    page.click("#tab-calls")
    page.locator("#table tbody tr").nth(1).click()
    page.wait_for_selector("#detail-body h3")
    assert faults(page) == []
    page.keyboard.press("Escape")
    page.click("#tab-by_module")
    page.click("#path-toggle")
    page.keyboard.press("?")
    assert faults(page) == []


@pytest.mark.parametrize("width", [1400, 390])
def test_the_page_of_a_run_that_is_watched_has_no_serious_fault(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900})
    try:
        with Run(tmp_path / "RUN.comm") as run:
            ranks = run.start_all(4)
            for rank in ranks[1:]:
                rank.issue()
            run.flush()
            run.pass_(50)
            with serving(render_live_page(run.folder), 0) as served:
                served.update(live_state(Observer(run.observer().watch).refresh()))
                page = context.new_page()
                page.goto(served.url)
                page.wait_for_selector("#ranks td")
                assert faults(page) == []
    finally:
        context.close()


def test_a_page_with_a_fault_is_found(browser: Browser) -> None:
    context = browser.new_context()
    try:
        page = context.new_page()
        page.set_content("<html lang=en><title>x</title><main><button></button></main>")
        assert faults(page) == [("button-name", "<button></button>")]
    finally:
        context.close()


def test_the_first_stop_of_the_keyboard_leads_to_the_content(page: Page) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
