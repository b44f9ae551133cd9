"""One picture as a page of its own, checked as text and in a real browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go
import pytest

from commtrace.analyze import load
from commtrace.errors import UsageError
from commtrace.figures.theme import DARK, LIGHT
from commtrace.report.picture import check_format, write_flame, write_picture, write_timeline
from tests.commtrace.analyze.rows import call, kernel, run_of
from tests.commtrace.analyze.training import training_trace
from tests.commtrace.report.browsing import Open

if TYPE_CHECKING:
    from playwright.sync_api import Page

HOSTILE = "</script><script>window.bad = 1</script>\"'<img src=x onerror=alert(1)>"


def opened(open_page: Open, path: Path, errors: list[str], **look: Any) -> Page:
    """Open a page in a small window, and collect all that it reports in `errors`."""
    return open_page(
        path, messages=errors, **({"viewport": {"width": 1000, "height": 700}} | look)
    ).page


def drawn(page: Any, what: str) -> Any:
    return page.evaluate(f"document.getElementById('picture').{what}")


@pytest.mark.parametrize(("num", "is_merged"), [(10, False), (5000, True)])
def test_a_timeline_says_if_a_bar_stands_for_several_kernels(
    num: int, is_merged: bool, tmp_path: Path
) -> None:
    kernels = [kernel(id=n, at=10 * n, until=10 * n + 5) for n in range(num)]
    frames = run_of([call(at=0, until=5)], kernels=kernels, num_ranks=1)
    write_timeline(frames, tmp_path / "timeline.html")
    text = (tmp_path / "timeline.html").read_text("utf-8")
    assert ("A pale bar of a stream stands for several kernels" in text) == is_merged


def test_a_picture_is_written_atomically(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_picture(go.Figure(go.Bar(x=[1], y=[2])), path)
    assert json.loads(path.read_text())["data"][0]["y"] == [2]
    with pytest.raises(UsageError, match=r"cannot draw x.gif"):
        write_picture(go.Figure(), tmp_path / "x.gif")
    assert [file.name for file in tmp_path.iterdir()] == ["x.json"]


def test_only_formats_that_can_be_written_are_accepted(monkeypatch: Any) -> None:
    monkeypatch.setattr("commtrace.report.picture.find_spec", lambda name: None)
    for name in ("a.html", "a.HTML", "a.json"):
        check_format(Path(name))
    for name in ("a", "a.txt", "a.png", "a.svg", "a.pdf"):
        with pytest.raises(UsageError):
            check_format(Path(name))
    monkeypatch.setattr("commtrace.report.picture.find_spec", lambda name: object())
    check_format(Path("a.png"))


def test_the_flame_graph_s_measure_can_be_chosen_and_zoomed(
    open_page: Open, tmp_path: Path
) -> None:
    errors: list[str] = []
    write_flame(load(training_trace()), tmp_path / "flame.html", value="num_calls")
    page = opened(open_page, tmp_path / "flame.html", errors)
    assert page.locator("[aria-pressed=true]").inner_text() == "Calls"
    calls = drawn(page, "data[0].values[0]")
    page.get_by_role("button", name="Exposed time").click()
    page.wait_for_function(f"document.getElementById('picture').data[0].values[0] != {calls}")
    assert page.locator("[aria-pressed=true]").inner_text() == "Exposed time"
    assert errors == []


def test_colours_follow_the_system_and_the_button(open_page: Open, tmp_path: Path) -> None:
    errors: list[str] = []
    write_timeline(load(training_trace()), tmp_path / "timeline.html")
    page = opened(open_page, tmp_path / "timeline.html", errors, color_scheme="dark")
    assert drawn(page, "layout.paper_bgcolor") == DARK.surface
    page.get_by_role("button", name="Switch between light and dark theme").click()
    page.wait_for_function("document.documentElement.dataset.theme == 'light'")
    assert drawn(page, "layout.paper_bgcolor") == LIGHT.surface
    assert errors == []


def test_names_from_the_trace_run_nothing(open_page: Open, tmp_path: Path) -> None:
    errors: list[str] = []
    frames = run_of(
        [call(at=0, until=9, kind=HOSTILE, module=HOSTILE, op=HOSTILE, wire_bytes=1)],
        run={"command": HOSTILE},
    )
    for write in (write_flame, write_timeline):
        write(frames, tmp_path / "x.html")
        page = opened(open_page, tmp_path / "x.html", errors)
        assert page.evaluate("window.bad") is None
        assert page.locator("h1").inner_text() == HOSTILE
        assert page.locator("img").count() == 0
        assert errors == []


def test_an_empty_picture_says_what_the_run_lacks(open_page: Open, tmp_path: Path) -> None:
    errors: list[str] = []
    write_timeline(run_of(), tmp_path / "x.html")
    page = opened(open_page, tmp_path / "x.html", errors)
    assert "No communication was recorded" in page.locator("body").inner_text()
    assert errors == []


@pytest.mark.parametrize("width", [390, 800, 1400])
def test_no_legend_runs_into_the_title(open_page: Open, tmp_path: Path, width: int) -> None:
    write_timeline(load(training_trace()), tmp_path / "timeline.html")
    errors: list[str] = []
    page = opened(open_page, tmp_path / "timeline.html", errors)
    page.set_viewport_size({"width": width, "height": 700})
    # A resized picture is drawn twice: once to measure the legend's rows, once with room for them.
    page.wait_for_function(
        """() => {
            const box = (element) => element.getBoundingClientRect();
            const part = (name) => document.querySelector(`#picture ${name}`);
            const [title, legend] = [".gtitle", ".legend .bg"].map(part).map(box);
            const plot = box(part(".nsewdrag"));
            const texts = [...document.querySelectorAll("#picture .legend .legendtext")].map(box);
            return box(part(".main-svg")).right <= innerWidth
                && title.bottom <= legend.top && legend.bottom <= plot.top + 6
                && texts.every((text) => text.top + 8 < legend.bottom)
                && part(".legend .scrollbar").width.baseVal.value === 0;
        }"""
    )
    assert errors == []
