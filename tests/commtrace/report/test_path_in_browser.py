"""The critical path on the page's timeline: shown, followed, linked, and hidden again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from commtrace.analyze import load
from commtrace.analyze.replay.critical_path import critical_path
from tests.commtrace.analyze.rows import run_of
from tests.commtrace.analyze.training import training_trace
from tests.commtrace.report.browsing import Open, fields, go_to, x_range

if TYPE_CHECKING:
    from playwright.sync_api import Page

BARS = """() => document.getElementById("timeline-picture").data
  .filter((trace) => ["path", "hop"].includes(trace.meta.part))
  .map(({ meta, x, y, customdata }) => ({ part: meta.part, x, y, customdata }))"""
TABLE = critical_path(load(training_trace()))


def drawn(page: Page) -> dict[str, Any]:
    """The traces of the path, by their parts."""
    page.wait_for_timeout(150)
    return {trace["part"]: trace for trace in page.evaluate(BARS)}


def selected(page: Page) -> int:
    return int(page.inner_text("#path-place").split(" of ")[0].replace(",", "")) - 1


def test_the_path_is_shown_on_request_and_hidden_again(shared: Page) -> None:
    assert drawn(shared) == {}
    shared.click("#path-toggle")
    bars = drawn(shared)["path"]
    rows = TABLE.iloc[bars["customdata"]]
    assert bars["x"] == pytest.approx((rows["duration_ns"] / 1e6).tolist())
    assert shared.get_attribute("#path-toggle", "aria-pressed") == "true"
    shared.keyboard.press("Escape")
    assert drawn(shared) == {}
    assert shared.is_hidden("#path")


def test_a_line_leads_from_rank_to_rank(shared: Page) -> None:
    shared.click("#whole")
    shared.click("#path-toggle")
    num_hops = int((TABLE["from_rank"] >= 0).sum())
    assert num_hops > 0
    x, y = drawn(shared)["hop"]["x"], drawn(shared)["hop"]["y"]
    assert len(x) == len(y) == 3 * num_hops
    ranks = {round(each) for each in drawn(shared)["path"]["y"]}
    assert ranks == set(TABLE["rank"])


def test_the_path_is_followed_from_stretch_to_stretch(shared: Page) -> None:
    go = shared.locator("#path-after")
    shared.click("#whole")
    shared.focus("#timeline-picture")
    shared.keyboard.press("c")
    first = selected(shared)
    longest = TABLE["duration_ns"].max()
    assert TABLE["duration_ns"][first] == longest
    text = shared.inner_text("#path-title")
    assert text.startswith(f"Rank {TABLE['rank'][first]}: {TABLE['work'][first]}")
    go.click()
    assert selected(shared) == first + 1
    shared.focus("#timeline-picture")
    shared.keyboard.press("[")
    shared.keyboard.press("[")
    assert selected(shared) == first - 1


def test_a_stretch_out_of_view_is_brought_into_it(shared: Page) -> None:
    shared.focus("#timeline-picture")
    for _ in range(8):
        shared.keyboard.press("w")
    shared.keyboard.press("c")
    before = x_range(shared)
    shared.click("#tab-critical_path")
    shared.locator("#table tbody tr").last.click()
    shared.wait_for_timeout(200)
    at = selected(shared)
    start = (TABLE["at_ns"] - load(training_trace()).start_ns) / 1e6
    first, last = x_range(shared)
    assert first <= start[at] <= last
    assert [first, last] != before


def test_a_click_on_a_stretch_selects_it_and_its_call_opens(shared: Page) -> None:
    shared.click("#path-toggle")
    bar = shared.locator("#timeline-picture .trace.bars").last.locator("path").nth(1)
    box = bar.bounding_box()
    assert box is not None
    shared.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    shared.wait_for_timeout(200)
    at = selected(shared)
    assert at == drawn(shared)["path"]["customdata"][1]
    shared.evaluate("document.getElementById('path-open').click()")
    assert fields(shared)["call"] == f"{TABLE['rank'][at]}:{TABLE['id'][at]}"
    shared.keyboard.press("Escape")


def test_the_address_has_the_selected_stretch(page: Page) -> None:
    page.click("#path-toggle")
    page.click("#path-after")
    at = selected(page)
    assert fields(page)["path"] == str(at + 1)
    address = page.url
    go_to(page, address)
    assert selected(page) == at
    page.evaluate("location.hash = 'path=0'")
    page.wait_for_timeout(200)
    assert "the critical path has no such stretch" in page.inner_text("#link-note-text")


def test_a_run_without_a_path_offers_none(open_page: Open) -> None:
    opened = open_page(run_of())
    assert opened.page.is_hidden("#path")
    assert opened.errors == []
