"""The page of a run that is watched, in Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from commtrace.live import Observer
from commtrace.report.live_page import LastMinute, live_state, render_live_page
from commtrace.tracefile.dump_files import StackDump, ThreadStack, dump_path, write_dump
from commtrace_cli.serving import Served, serving
from tests.commtrace.live.growing import Run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
HOSTILE = "<img src=x onerror=alert(1)>\u202e"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """A run of 12 ranks that has been hanging for 50 seconds, with a dump of rank 5."""
    with Run(tmp_path / "RUN.comm") as run:
        ranks = run.start_all(12, run={"command": f"train.py {HOSTILE}"})
        for step in range(40):
            calls = [rank.issue(source_file=f"{HOSTILE}.py") for rank in ranks]
            run.pass_(0.1)
            for rank, call in zip(ranks, calls, strict=True):
                rank.end(call)
                rank.step(step, step * 0.1, step * 0.1 + 0.1)
        for rank in ranks:
            if rank.number != 5:
                rank.issue()
        run.flush()
        run.pass_(50)
        yield run


@pytest.fixture
def served(run: Run) -> Iterator[Served]:
    observer = Observer(run.observer().watch)
    frames = (("/site-packages/torch/x.py", 3, "wait"), (f"{HOSTILE}.py", 8, "load"))
    dump = StackDump(5, "n", 1, run.time.ns, "", (ThreadStack("MainThread", 1, frames),), ())
    write_dump(dump_path(run.folder / "rank-00005.spool"), dump)
    with serving(render_live_page(run.folder), 0) as served:
        served.update(live_state(observer.refresh()))
        yield served


@pytest.fixture
def open_live(browser: Browser, served: Served) -> Iterator[Any]:
    contexts, errors = [], []

    def opened(**more: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **more})
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text))
        page.on("dialog", lambda dialog: errors.append("a dialog"))
        page.goto(served.url)
        page.wait_for_selector("#ranks td")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert errors == []


def test_the_page_says_who_is_missing(open_live: Any) -> None:
    page = open_live()
    text = page.inner_text("main")
    verdict = page.inner_text("#verdict.bad")
    assert verdict.startswith("Hang for 50.0 s: Rank 5 made no further call; others wait at")
    assert text.count("made no further call") == 1
    assert page.inner_text("#groups tbody").split("\t") == [
        "0", "all_reduce 40", "11 of 12", "rank 5", "50.0 s",
    ]  # fmt: skip
    assert page.locator("#cells .cell").count() == 12
    assert page.locator("#cells .hanging").count() == 11
    assert page.locator("#trend rect").count() == 40


def test_the_strip_has_a_column_for_each_second_that_was_watched(run: Run) -> None:
    observer, minute = Observer(run.observer().watch), LastMinute()
    assert minute.columns(observer.refresh()) == [[["hanging", 5], ["free", 1], ["hanging", 6]]]
    run.pass_(2.5)
    run.ranks[5].issue()
    run.flush()
    before, now = [["hanging", 5], ["free", 1], ["hanging", 6]], [["hanging", 12]]
    first, second, last = minute.columns(observer.refresh())
    assert (first, second) == (before, before)
    assert last != before
    assert sum(ranks for _, ranks in last) == 12
    run.pass_(70)
    columns = minute.columns(observer.refresh())
    assert len(columns) == 60
    assert columns[0] == last
    assert columns[-1] == now


def test_the_strip_is_there_when_the_page_is_opened_later(
    open_live: Any, served: Served, run: Run
) -> None:
    observer, minute = Observer(run.observer().watch), LastMinute()
    minute.columns(observer.refresh())
    run.pass_(30)
    served.update(live_state(observer.refresh(), minute))
    page = open_live()
    canvas = page.locator("#minute")
    assert [canvas.get_attribute(name) for name in ("width", "height")] == ["60", f"{12 * 9}"]
    drawn = "[...place('minute').getContext('2d').getImageData(0, 4, 60, 1).data]"
    assert page.evaluate(drawn)[3::4] == [0] * 29 + [255] * 31


def test_a_run_without_problems_says_so_first(browser: Browser, tmp_path: Path) -> None:
    context = browser.new_context()
    try:
        with Run(tmp_path / "RUN.comm") as run:
            for rank in run.start_all(2):
                rank.end(rank.issue())
            run.flush()
            page = context.new_page()
            with serving(render_live_page(run.folder), 0) as served:
                served.update(live_state(run.observer().refresh()))
                page.goto(served.url)
                page.locator("#verdict.good").wait_for(timeout=10_000)
                assert page.inner_text("#verdict") == "The run makes progress; no problem was found"
    finally:
        context.close()


def test_a_square_tells_its_rank(open_live: Any) -> None:
    page = open_live()
    page.hover("#cells .cell >> nth=5")
    assert page.inner_text("#pointed").startswith("rank 5: outside of communication")


def test_text_of_a_recording_is_shown_as_text(open_live: Any) -> None:
    page = open_live()
    assert page.locator("img").count() == 0
    assert "<img src=x onerror=alert(1)>\\u202e" in page.inner_text("#command")
    assert "<img src=x onerror=alert(1)>\\u202e.py:8 load" in page.inner_text("#stacks")
    assert page.locator("#stacks pre span").count() == 2


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_its_width_in_both_themes(open_live: Any, width: int, scheme: str) -> None:
    page = open_live(viewport={"width": width, "height": 900}, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    back = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(back)
    page.click("#theme")
    assert page.evaluate(back) != before


def test_a_new_state_replaces_the_old_one(open_live: Any, served: Served, run: Run) -> None:
    page = open_live()
    run.ranks[5].issue()
    run.flush()
    served.update(live_state(run.observer().refresh()))
    page.locator("#groups td.bad").wait_for(state="detached", timeout=10_000)
    assert "rank 5" not in page.inner_text("#groups")


def test_the_end_of_the_server_is_said(browser: Browser, run: Run) -> None:
    context = browser.new_context()
    try:
        page = context.new_page()
        with serving(render_live_page(run.folder), 0) as served:
            served.update(live_state(run.observer().refresh()))
            page.goto(served.url)
            page.wait_for_selector("#ranks td")
        page.locator("#at.lost").wait_for(timeout=10_000)
        assert page.inner_text("#at") == "no answer: commtrace watch has ended"
    finally:
        context.close()
