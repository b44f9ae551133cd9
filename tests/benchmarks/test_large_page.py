from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks import large_page
from benchmarks.large_page import BARS, Measured, text_of, used, written
from benchmarks.large_run import Plan, large_trace
from commtrace.tracefile import write_trace

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def test_everything_that_has_a_bar_is_measured(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_page, "REPEATS", 1)
    plan = Plan(num_ranks=16, num_calls=16 * 9 * 21, num_layers=4, tp=8, late_rank=3)
    trace, page = tmp_path / "run.json", tmp_path / "report.html"
    write_trace(large_trace(plan), trace)
    measured = written(trace, page)
    in_browser, details = used(browser, page)
    assert [each.name for each in (*measured, *in_browser)] == list(BARS)
    assert all(each.value > 0 for each in (*measured, *in_browser))
    assert details["opened"] <= details["ready"]
    assert measured[3].value == page.stat().st_size


def test_a_figure_meets_its_bar_or_does_not() -> None:
    assert Measured("open", 1.4).is_met
    assert not Measured("open", 1.5).is_met
    assert Measured("size", 8_230_000).text == "8.23 MB"
    assert text_of(*BARS["open"]) == "1.5 s"
