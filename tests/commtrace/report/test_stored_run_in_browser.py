"""The page of a stored run in the browser: single calls in stretches, shares of time elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.large_run import Plan, large_trace
from commtrace.analyze import Frames
from commtrace.analyze.stored import StoredRun
from commtrace.report import detail as detail_module
from commtrace.report import write_report
from commtrace.report.overview import UNIT, edges_ns, overview
from commtrace.selection import Selection
from tests.commtrace.report.browsing import Open
from tests.commtrace.report.reading import data
from tests.commtrace.report.test_page_of_stored_run import stored_run

PLAN = Plan(num_ranks=8, num_calls=12_000, num_layers=8)
MOST_CALLS = 3600


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[StoredRun, Frames]:
    return stored_run(large_trace(PLAN), tmp_path_factory.mktemp("stored") / "RUN.comm")


@pytest.fixture(scope="module")
def path(runs: tuple[StoredRun, Frames], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the run with a quarter of its calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detail_module, "MOST_CALLS", MOST_CALLS)
        return write_report(runs[0], tmp_path_factory.mktemp("page") / "report.html")


def shown(page: Any) -> str:
    return page.inner_text("#timeline-shown")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_opens_without_errors_and_says_what_it_has(
    open_page: Open, path: Path, theme: str
) -> None:
    opened = open_page(path)
    page = opened.page
    page.emulate_media(color_scheme=theme)
    for width in (700, 800, 1400):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function("() => document.documentElement.scrollWidth <= window.innerWidth")
    assert "are on this page" in page.inner_text("#overview .part")
    page.click("#tab-calls")
    assert "more calls are not on this page" in page.inner_text("#table")
    assert opened.errors == []


def test_single_calls_are_drawn_in_stretches_and_shares_elsewhere(
    open_page: Open, path: Path
) -> None:
    opened = open_page(path)
    page = opened.page
    marked = page.evaluate(
        "document.getElementById('timeline-picture').data"
        ".find((trace) => trace.meta.part === 'stretch').base"
    )
    stretches = data(path.read_text())["timeline"]["stretches"]
    assert len(marked) == len(stretches)
    assert "about" not in shown(page)
    assert page.locator("#timeline-elsewhere").is_hidden()
    page.click("#whole")
    page.wait_for_function("() => !document.getElementById('timeline-elsewhere').hidden")
    assert shown(page).startswith("about ")
    command = page.inner_text("#timeline-command")
    assert command.startswith("commtrace report ")
    assert command.endswith("-o part.html")
    assert page.locator(
        "#timeline-picture .imagelayer-above image, #timeline-picture .layer-above image"
    ).count()
    page.click("#legend button[data-kind]")
    page.wait_for_timeout(300)
    assert opened.errors == []


def test_evidence_of_a_finding_is_shown_call_by_call(open_page: Open, path: Path) -> None:
    opened = open_page(path)
    page = opened.page
    page.locator("[data-evidence]").first.click()
    page.wait_for_timeout(400)
    assert " of " in page.inner_text("#marked-place")
    assert page.locator("#timeline-elsewhere").is_hidden()
    assert "about" not in shown(page)
    assert opened.errors == []


def test_the_script_draws_the_shares_of_the_overview(
    open_page: Open, path: Path, runs: tuple[StoredRun, Frames]
) -> None:
    whole = runs[1]
    ranks = sorted(whole.ranks["rank"])
    seen = overview(whole, ranks, edges_ns(whole))
    first, last = seen.first_ns, seen.first_ns + seen.num_columns * seen.column_ns
    page = open_page(path).page
    found = page.evaluate(
        """([head, bytes, ranks, first, last, columns]) => {
          const seen = new Overview(head, Uint8Array.from(bytes));
          return [seen.shares(ranks, first, last, columns, new Set()).map((sum) => [...sum]),
                  seen.count(first, last, new Set())];
        }""",
        [seen.head(), list(seen.body()), len(ranks), first, last, 10],
    )
    shares = seen.shares[:, : seen.num_columns // 10 * 10].astype("float64")
    expected = shares.reshape(len(ranks), 10, -1, 2 * len(seen.kinds)).sum(axis=2)
    assert seen.num_columns % 10 == 0
    np.testing.assert_allclose(
        np.array(found[0]), expected.reshape(len(ranks), -1) * seen.column_ns / UNIT, rtol=1e-4
    )
    assert found[1] == len(whole.comm)


def test_calls_of_ranks_that_are_not_shown_are_not_said_to_be_missing(
    open_page: Open, runs: tuple[StoredRun, Frames], tmp_path: Path
) -> None:
    opened = open_page(write_report(runs[1], tmp_path / "report.html", Selection(ranks=[0, 1])))
    page = opened.page
    page.click("#tab-calls")
    page.locator("#table tbody tr").first.click()
    said = page.inner_text("#detail")
    assert "are not on this page" in said
    assert "is in the trace" not in said
    assert opened.errors == []
