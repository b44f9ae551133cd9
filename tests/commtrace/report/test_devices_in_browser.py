"""The page of a run with kernels: their lanes in the timeline, and the time of devices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from commtrace.analyze import load
from commtrace.analyze.devices.gpu_time import gpu_time, summary
from commtrace.report import write_report
from commtrace.report.kernel_store import MAX_BARS, kernel_store
from tests.commtrace.analyze.devices.devices import device_trace
from tests.commtrace.analyze.rows import call, kernel, run_of
from tests.commtrace.analyze.training import training_trace
from tests.commtrace.report.browsing import Open, Opened, go_to, hover
from tests.commtrace.report.conftest import opened_in
from tests.commtrace.report.test_downloads import saved

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TIMELINE = "document.getElementById('timeline-picture')"
KERNELS = f"""() => {TIMELINE}.data.filter((trace) => trace.meta.part === "kernel").map(
  ({{ name, base, x, y, marker, hovertext }}) => ({{ name, base, x, y, marker, hovertext }}))"""


def kernels_of(page: Page) -> dict[str, Any]:
    """The traces of kernels that the timeline shows, by name."""
    return {trace["name"]: trace for trace in page.evaluate(KERNELS)}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(device_trace(), tmp_path_factory.mktemp("devices") / "report.html")


@pytest.fixture(scope="module")
def opened(browser: Browser, path: Path) -> Iterator[Opened]:
    found = opened_in(browser, path)
    yield found
    found.page.context.close()


@pytest.fixture
def devices(opened: Opened) -> Iterator[Page]:
    yield opened.page
    assert opened.errors == []


def test_the_page_says_and_draws_where_the_time_of_devices_goes(devices: Page) -> None:
    text = summary(gpu_time(load(device_trace())))
    assert devices.inner_text("#gpu_time .sentence") == text
    drawn = devices.evaluate("document.getElementById('gpu_time-picture').data.length")
    assert drawn >= 6
    assert devices.locator("nav a[href='#gpu_time']").is_visible()
    tile = devices.locator(".tile", has_text="Devices compute")
    assert tile.locator(".value").inner_text() == "20.0%"
    name, svg = saved(devices, "[data-svg=gpu_time]")
    assert (name, "<svg" in svg) == ("gpu_time.svg", True)


def test_the_tables_of_devices_are_on_the_page(devices: Page) -> None:
    devices.click("#tab-gpu_time")
    streams = devices.locator("#table tbody tr td:nth-child(3)").all_inner_texts()
    assert streams[:3] == ["all", "all", "7"]
    devices.click("#tab-kernel_patterns")
    assert "ncclDevKernel_AllReduce" in devices.inner_text("#table tbody tr:first-child")


def test_kernels_stand_on_the_lanes_of_their_streams(devices: Page) -> None:
    drawn = kernels_of(devices)
    assert set(drawn) == {"computing", "copying", "all_reduce"}
    assert len(drawn["computing"]["x"]) == 16
    assert drawn["computing"]["base"][0] == pytest.approx(0.05)
    assert len(set(drawn["computing"]["y"])) == 2
    labels = devices.evaluate(f"{TIMELINE}.layout.yaxis.ticktext")
    assert labels[2:5] == ["stream 7", "stream 22", "stream 20"]
    text = drawn["computing"]["hovertext"][0]
    assert text == "<b>gemm_0</b><br>rank 0, stream 7<br>computing, 50 µs<br>launched 49 µs before"
    keys = devices.locator("#legend .key").all_inner_texts()
    assert {"computing", "copying"} <= set(keys)


def test_hiding_a_kind_hides_its_kernels(open_page: Open, path: Path) -> None:
    page = open_page(path).page
    page.click("#legend [data-kind=all_reduce]")
    page.wait_for_function(f"() => !({KERNELS})().some((trace) => trace.name === 'all_reduce')")
    assert set(kernels_of(page)) == {"computing", "copying"}


def test_a_call_is_marked_at_its_height(open_page: Open, path: Path) -> None:
    page = open_page(path).page
    go_to(page, f"{path.as_uri()}#call=0:1")
    page.click("#detail-show")
    page.wait_for_function(f"() => {TIMELINE}.data.some((trace) => trace.meta.part === 'mark')")
    marks, bars = (
        page.evaluate(f"{TIMELINE}.data.find((trace) => trace.meta.part === '{part}').y")
        for part in ("mark", "transfer")
    )
    assert marks[0] == pytest.approx(bars[0])


def many(num: int = 3000) -> Any:
    """A run with many kernels on a stream, which is busy in every second half of a ms."""
    kernels = [
        kernel(id=n, at=1000 * n, until=1000 * n + 500, launched=1000 * n, name=f"k{n % 2}")
        for n in range(num)
    ]
    return run_of([call(at=0, until=900)], kernels=kernels, num_ranks=1)


def test_many_kernels_are_merged_until_the_view_is_close(open_page: Open) -> None:
    opened = open_page(many())
    page = opened.page
    drawn = kernels_of(page)["computing"]
    assert len(drawn["x"]) <= 400
    assert drawn["marker"]["opacity"][5] == pytest.approx(0.5, abs=0.1)
    assert "is busy<br>most of it computing: k" in drawn["hovertext"][5]
    assert page.locator("#timeline-merged").is_visible()
    assert "merged in this page" not in page.inner_text("#timeline-merged")
    page.evaluate("location.hash = '#time=0.1..0.2'")
    page.wait_for_function(f"() => ({KERNELS})()[0].hovertext[0].startsWith('<b>k')")
    drawn = kernels_of(page)["computing"]
    assert len(drawn["x"]) < 400
    assert set(drawn["marker"]["opacity"]) == {1}
    assert page.locator("#timeline-merged").is_hidden()
    assert opened.errors == []


def test_a_bar_answers_to_the_pointer(open_page: Open) -> None:
    kernels = [kernel(at=0, until=900, launched=0, name="a<b>{c}")]
    opened = open_page(run_of([call(at=0, until=900)], kernels=kernels, num_ranks=1))
    text = hover(opened.page, "#timeline-picture", ".barlayer .trace:last-child .point path")
    assert text.startswith("a<b>{c}")
    assert opened.errors == []


def test_calls_drawn_as_shares_leave_the_lanes_to_the_kernels(open_page: Open) -> None:
    calls = [
        call(id=n, seq=n, at=1000 * n, until=1000 * n + 500, call_ns=500, blocked_ns=500)
        for n in range(4000)
    ]
    kernels = [kernel(at=0, until=4_000_000, launched=0)]
    opened = open_page(run_of(calls, kernels=kernels, num_ranks=1))
    page = opened.page
    assert page.locator("#timeline-many").is_visible()
    text = hover(page, "#timeline-picture", ".barlayer .trace:last-child .point path")
    assert text.startswith("gemm")
    assert opened.errors == []


def test_a_page_stores_a_bounded_number_of_bars() -> None:
    from commtrace.figures.kernel_lanes import drawn_lanes
    from commtrace.figures.timeline_rows import TimelineRows

    kernels = [kernel(id=n, at=n, until=n + 1, stream=n % 2) for n in range(MAX_BARS + 1000)]
    frames = run_of(kernels=kernels, num_ranks=1)
    drawn = drawn_lanes(frames, [0], MAX_BARS)
    store = kernel_store(drawn, [0], TimelineRows.of(1, 2), frames.start_ns)
    lasts = [sum(lane["lasts"]) for lane in store["lanes"]]
    assert sum(len(lane["starts"]) for lane in store["lanes"]) <= MAX_BARS
    assert store["num_kernels"] == store["num_merged"] == len(kernels)
    assert sum(sum(lane["nums"]) for lane in store["lanes"]) == len(kernels)
    assert sum(sum(lane["busy"]) for lane in store["lanes"]) == len(kernels)
    assert all(last >= len(kernels) - 2 for last in lasts)


def test_a_run_without_kernels_has_neither_section_nor_tables_of_devices(open_page: Open) -> None:
    page = open_page(load(training_trace())).page
    for place in ("#gpu_time", "#tab-gpu_time", "#tab-kernel_patterns", "nav a[href='#gpu_time']"):
        assert page.locator(place).count() == 0
    assert kernels_of(page) == {}
    assert page.evaluate(f"{TIMELINE}.layout.yaxis.tickvals") == [0, 1, 2, 3]


def test_kernels_without_calls_have_a_sentence(open_page: Open) -> None:
    opened = open_page(run_of(kernels=[kernel(at=0, until=9)], num_ranks=1))
    assert "100.0% is computing" in opened.page.inner_text("#gpu_time .sentence")
    assert opened.errors == []
