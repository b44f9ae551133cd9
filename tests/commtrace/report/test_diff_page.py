"""The page that compares runs, checked as data and in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from commtrace.analyze import load
from commtrace.analyze.comparisons.diff import MEASURED
from commtrace.analyze.comparisons.growth import Grown
from commtrace.analyze.run.frame import Frames
from commtrace.report import diff_page, write_diff
from commtrace.report.diff_page import labels_of
from tests.commtrace.analyze.rows import call, run_of
from tests.commtrace.report.browsing import Open
from tests.commtrace.report.test_picture import HOSTILE
from tests.commtrace.synthetic import write_synthetic_run

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Frames]:
    """A baseline, a run with an additional layer, and a run of eight ranks."""
    folder = tmp_path_factory.mktemp("runs")
    made = {"base": {}, "deeper": {"num_layers": 3}, "wider": {"world_size": 8}}
    return [
        load(write_synthetic_run(folder / f"{name}.json", **given)) for name, given in made.items()
    ]


def opened(open_page: Open, path: Path, errors: list[str], **look: Any) -> Page:
    """Open a page in a small window, and collect all that it reports in `errors`."""
    return open_page(
        path, messages=errors, **({"viewport": {"width": 1400, "height": 900}} | look)
    ).page


def rows_of(page: Any, table: str) -> list[list[str]]:
    lines = page.locator(f"#{table} tbody tr")
    return [lines.nth(n).locator("td").all_inner_texts() for n in range(lines.count())]


def test_runs_are_named_so_that_they_can_be_distinguished() -> None:
    assert labels_of([Path("x/a.json"), Path("y/b.json")]) == ["a.json", "b.json"]
    assert labels_of([Path("x/a.json"), Path("y/a.json")]) == ["x/a.json", "y/a.json"]
    assert labels_of([Path("a.json"), Path("a.json"), None]) == ["a.json", "a.json (2)", "a run"]


def test_tables_have_the_baseline_first_and_what_grew_most_on_top(
    open_page: Open, runs: list[Frames], tmp_path: Path
) -> None:
    errors: list[str] = []
    page = opened(open_page, write_diff(runs, tmp_path / "diff.html"), errors)
    assert page.locator(".runs li b").all_inner_texts() == [
        "base.json",
        "deeper.json",
        "wider.json",
    ]
    assert page.locator(".lacks").all_inner_texts() == [
        "The runs have 4, 4 and 8 ranks: numbers are means over each run's ranks, and the bytes "
        "sent per rank depend on the number of ranks."
    ]
    page.get_by_role("button", name="Calls").click()
    assert rows_of(page, "totals")[1] == ["Calls", "10", "15", "+5 (+50.0 %)", "10", "="]
    first, second, *_ = rows_of(page, "by-module")
    assert first == ["layers", "10", "15", "+5 (+50.0 %)", "10", "="]
    assert second == ["layers.2", "0", "5", "new", "0", "="]
    assert rows_of(page, "by-line") == [
        ["train.py:42\nin forward", "10", "15", "+5 (+50.0 %)", "10", "="]
    ]
    assert page.locator("#rest-module").inner_text() == "6 the same."
    assert errors == []


def test_flame_graphs_are_on_one_scale_and_coloured_by_growth(
    open_page: Open, runs: list[Frames], tmp_path: Path
) -> None:
    errors: list[str] = []
    page = opened(open_page, write_diff(runs[:2], tmp_path / "diff.html"), errors)
    drawn = page.evaluate(
        "[0, 1].map((n) => document.getElementById(`flame-${n}`).data[0])"
        ".map(({ domain, labels, marker }) => "
        "({ end: domain.x[1], labels, colors: marker.colors }))"
    )
    assert [round(each["end"], 3) for each in drawn] == [0.667, 1]
    colours = dict(zip(drawn[1]["labels"], drawn[1]["colors"], strict=True))
    assert colours["layers.2"] == colours["all communication"] != colours["layers.0"]
    page.locator("#scale").click()
    page.wait_for_function("document.getElementById('flame-0').data[0].domain.x[1] === 1")
    assert errors == []


@pytest.mark.parametrize("width", [1400, 800, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_never_scrolls_sideways(
    open_page: Open, runs: list[Frames], tmp_path: Path, width: int, scheme: str
) -> None:
    errors: list[str] = []
    look = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
    page = opened(open_page, write_diff(runs, tmp_path / "diff.html"), errors, **look)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    assert errors == []


def test_a_long_table_keeps_the_rows_that_changed_most() -> None:
    sizes = {"grew": (1, 9), "same": (5, 5), "shrank": (30, 1), "grew a little": (2, 3)}
    rows = [
        Grown(name, "", "run", dict.fromkeys(MEASURED, (float(before), float(after))))
        for name, (before, after) in sizes.items()
    ]
    with mock.patch.object(diff_page, "MAX_ROWS", 2):
        assert [row.name for row in diff_page._most_changed(rows)] == ["grew", "shrank"]


def test_names_of_a_trace_are_shown_and_not_executed(open_page: Open, tmp_path: Path) -> None:
    errors: list[str] = []
    names = {"module": HOSTILE, "source_file": HOSTILE, "source_line": 1, "wire_bytes": 8}
    base = run_of([call(**names)], run={"command": f"\u202e{HOSTILE}"})
    other = run_of([call(**names), call(id=1, **names)])
    page = opened(
        open_page, write_diff([base, other], tmp_path / "x.html", labels=[HOSTILE, "b"]), errors
    )
    assert page.evaluate("window.bad") is None
    assert HOSTILE in page.locator("#by-module").inner_text()
    assert r"\u202e" in page.locator(".runs").inner_text()
    assert errors == []


def test_equal_runs_have_no_difference(open_page: Open, runs: list[Frames], tmp_path: Path) -> None:
    errors: list[str] = []
    page = opened(open_page, write_diff([runs[0], runs[0]], tmp_path / "diff.html"), errors)
    assert page.locator("#rest-kind").inner_text() == "Bytes sent: no difference in 3 kinds."
    assert rows_of(page, "by-kind") == []
    assert errors == []


def test_a_run_without_communication_is_compared_too(open_page: Open, tmp_path: Path) -> None:
    errors: list[str] = []
    base, silent = run_of([call(module="a", wire_bytes=8)]), run_of([])
    page = opened(open_page, write_diff([base, silent], tmp_path / "diff.html"), errors)
    assert rows_of(page, "by-module")[0][-1] == "gone"
    assert errors == []


def test_time_that_only_one_run_knows_is_not_coloured_as_growth(
    open_page: Open, tmp_path: Path
) -> None:
    def run(**ends: int) -> Frames:
        calls = [
            call(id=n, module=name, wire_bytes=8 + n, blocked_ns=ends[name])
            for n, name in enumerate(ends)
        ]
        return run_of(calls, num_ranks=1)

    errors: list[str] = []
    runs = [run(known=10_000, untimed=-1, grew=5_000), run(known=10_000, untimed=9_000, grew=8_000)]
    page = opened(open_page, write_diff(runs, tmp_path / "diff.html"), errors)
    page.get_by_role("button", name="Exposed time").click()
    page.wait_for_function("document.getElementById('flame-1').data[0].values[0] === 27000")
    labels, colours, texts = page.evaluate(
        "(({ labels, marker, hovertext }) => [labels, marker.colors, hovertext])"
        "(document.getElementById('flame-1').data[0])"
    )
    colour = dict(zip(labels, colours, strict=True))
    assert colour["untimed"] == colour["known"] != colour["grew"]
    # All calls of one run and two of three of the other are no basis for a comparison.
    assert colour["all communication"] == colour["known"]
    text = dict(zip(labels, texts, strict=True))
    assert "baseline –: change not known" in text["untimed"]
    assert "baseline 5 µs: +3 µs" in text["grew"]
    rows = {row[0]: row[1:] for row in rows_of(page, "by-module")}
    assert rows == {"grew": ["5 µs", "8 µs", "+3 µs (+60.0 %)"]}
    assert page.locator("#rest-module").inner_text() == "1 the same. 1 not known."
    assert page.locator(".lacks").all_inner_texts() == [
        "The first run lacks the blocked time of 1 of 3 calls: places where another run has more "
        "or fewer known values are not compared."
    ]
    assert errors == []
