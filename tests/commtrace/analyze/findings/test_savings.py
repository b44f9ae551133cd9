"""Laws of savings: none exceeds the time for which its calls blocked ranks, nor do all together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from commtrace.analyze import Frames, load
from commtrace.analyze import findings as findings_module
from commtrace.analyze.findings import findings
from commtrace.analyze.findings.finding import FAULT, MACHINE, PROGRAM, Finding, calls_in, in_order
from commtrace.analyze.findings.savings import capped
from commtrace.settings import DEFAULTS, THRESHOLDS, Settings
from commtrace.tracefile import read_trace
from tests.commtrace.analyze.findings.savings_law import broken_laws
from tests.commtrace.analyze.rows import call, run_of
from tests.commtrace.analyze.split_run import SplitRun
from tests.commtrace.analyze.test_hard_traces import HARD
from tests.commtrace.analyze.test_second_computation import FAULTY, TRACES
from tests.commtrace.report.test_page_of_stored_run import stored_run

GOLD = sorted((Path(__file__).parents[3] / "gold").glob("*.json"))
PIPELINES = {"bubble_share", "schedule_share"}
"""Thresholds of idle time, which a run may lack."""
KEENER = replace(
    DEFAULTS,
    thresholds={**dict.fromkeys(THRESHOLDS.keys() - PIPELINES, 0.0), "straggler_ratio": 2.0},
)
"""Settings with which rules report small costs, too."""

RUNS: dict[str, Callable[[], Frames]] = {
    **{name: (lambda trace=trace: load(trace)) for name, trace in (TRACES | FAULTY).items()},
    **{name: (lambda frames=frames: frames) for name, frames in HARD.items()},
    **{path.stem: (lambda path=path: load(read_trace(path))) for path in GOLD},
}


@pytest.mark.parametrize("settings", [DEFAULTS, KEENER], ids=["default", "keener"])
@pytest.mark.parametrize("name", RUNS)
def test_no_finding_saves_more_than_its_calls_blocked_and_all_together_neither(
    name: str, settings: Settings
) -> None:
    assert broken_laws(RUNS[name]().with_settings(settings)) == []


STORED = ("training", "mesh", "device0", "piped0", "receives", "broadcasts", "in turn", "crossed")


@pytest.mark.parametrize("name", STORED)
def test_the_laws_hold_for_stored_runs(name: str, tmp_path: Path) -> None:
    stored, _ = stored_run((TRACES | FAULTY)[name], tmp_path / "RUN.comm")
    assert broken_laws(stored.with_settings(KEENER)) == []


def test_a_saving_above_the_blocked_time_breaks_the_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings_module, "capped", lambda _, found, __: found)
    (broken,) = broken_laws(load(TRACES["broadcasts"]))
    assert broken == "all findings save 16000000.0 of 12000000.0 ns"


@pytest.mark.parametrize("name", ["random0", "routed0", "training", "in turn", "stalled"])
def test_savings_of_a_run_in_parts_are_those_of_the_run_in_memory(name: str) -> None:
    whole = RUNS[name]()
    pd.testing.assert_frame_equal(findings(SplitRun(whole)), findings(whole), rtol=1e-12)


def test_of_two_findings_on_the_same_calls_the_second_saves_what_the_first_leaves() -> None:
    frames = run_of([call(id=n, blocked_ns=100) for n in range(2)], num_ranks=1)
    first, second, beyond = (
        Finding("", "", calls_in(frames, frames.comm.iloc[:num], cost_bytes=0.0, cost_ns=cost))
        for num, cost in ((2, 150.0), (1, 60.0), (1, 500.0))
    )
    saved = [each.calls.cost_ns for each in capped(frames, [first, second], [False, False])]
    assert saved == [150, pytest.approx(25)]
    assert [each.calls.cost_ns for each in capped(frames, [beyond], [False])] == [100]
    saved = [each.calls.cost_ns for each in capped(frames, [first, second], [True, False])]
    assert saved == [pytest.approx(115), 60]  # the program's comes before the machine's


def test_what_concerns_the_machine_comes_last_however_costly_it_is() -> None:
    concerns = {"cores": MACHINE, "late": PROGRAM, "hang": FAULT}
    rows = [
        {"rule": rule, "concerns": each, "cost_ns": cost, "cost_bytes": 0.0, "title": ""}
        for cost, (rule, each) in zip((9.0, 5.0, 0.0), concerns.items(), strict=True)
    ]
    assert in_order(pd.DataFrame(rows))["rule"].tolist() == ["hang", "late", "cores"]


def test_a_saving_of_calls_of_unknown_blocked_time_is_unknown() -> None:
    frames = run_of([call(blocked_ns=-1)], num_ranks=1)
    given = Finding("", "", calls_in(frames, frames.comm, cost_bytes=0.0, cost_ns=5.0))
    assert math.isnan(capped(frames, [given], [False])[0].calls.cost_ns)
