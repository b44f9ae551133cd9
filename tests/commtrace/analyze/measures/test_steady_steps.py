"""Steps that take much longer than the others are left out of shares, and named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from commtrace.analyze import CATALOG, Frames, load
from commtrace.analyze.comparisons.diff import diff, differences_of_runs
from commtrace.analyze.excerpts.time_window import of_steps
from commtrace.analyze.findings import findings
from commtrace.analyze.measures.steady_steps import left_out, left_out_text
from commtrace.tracefile import Trace
from tests.commtrace.analyze.each_step_rows import BARRIER, OBJECTS, in_steps
from tests.commtrace.analyze.rows import call, run_of, step


def run(durations: list[int]) -> Frames:
    """One rank; each step is blocked for 5 ns in a call that it begins with."""
    steps: list[Any] = []
    calls: list[Any] = []
    at = 0
    for number, lasts in enumerate(durations):
        steps.append(step(0, number, at, at + lasts))
        calls.append(
            call(
                id=number, seq=number, step=number, at=at, until=at + 5, call_ns=5, blocked_ns=5,
                kind="all_reduce",
            )
        )  # fmt: skip
        at += lasts
    return run_of(calls, num_ranks=1, steps=steps)


@pytest.mark.parametrize(
    ("durations", "expected"),
    [
        ([], []),
        ([900], []),
        ([140, 10], [0]),
        ([10, 140], []),
        ([10, 10, 10, 10], []),
        ([19, 10, 10], []),
        ([140, 10, 11, 10], [0]),
        ([140, 10, 10, 90, 10], [0, 3]),
        ([10, 30, 10, 30, 10, 10, 10], []),
    ],
)
def test_the_first_step_and_a_single_other_one_are_left_out(
    durations: list[int], expected: list[int]
) -> None:
    assert [*left_out(run(durations))] == expected


def test_shares_are_those_of_steady_steps() -> None:
    frames = run([140, 10, 10, 10])
    assert left_out_text(frames) == "step 0 left out: 14 × the median"
    (row,) = CATALOG["by_kind"].function(frames).to_dict("records")
    assert row["share_of_steps"] == 0.5
    assert row["calls_per_step"] == 1


def warmed_up(trace: Trace, by_ns: int = 10**9) -> Frames:
    """A run whose first step began earlier, so that it takes far longer than the others."""
    frames = load(trace)
    earlier = by_ns * (frames.steps["step"] == 0)
    steps = frames.steps.assign(start_ns=frames.steps["start_ns"] - earlier)
    return replace(frames, steps=steps)


@pytest.mark.parametrize(
    ("rule", "trace"),
    [
        ("object_collectives", in_steps(OBJECTS)),
        ("redundant_barrier", in_steps(BARRIER)),
    ],
)
def test_savings_of_findings_leave_out_the_first_step(rule: str, trace: Trace) -> None:
    def saved(frames: Frames) -> float:
        table = findings(frames)
        return float(table.loc[table["rule"] == rule, "cost_ns"].sum())

    whole, warm = load(trace), warmed_up(trace)
    num_steps = whole.steps["step"].nunique()
    assert ([*left_out(whole)], [*left_out(warm)]) == ([], [0])
    assert saved(warm) == pytest.approx(saved(whole) * (num_steps - 1) / num_steps)


def test_the_share_of_a_finding_is_its_saving_in_the_time_of_the_steady_steps() -> None:
    frames = warmed_up(in_steps(OBJECTS))
    row = findings(frames).iloc[0]
    steady = frames.steps[frames.steps["step"] > 0]
    lasted = (steady["end_ns"] - steady["start_ns"]).sum() / frames.num_ranks
    assert row["share"] == pytest.approx(row["cost_ns"] / lasted)


def test_times_of_a_comparison_are_those_of_steady_steps_and_counts_those_of_all() -> None:
    usual, slow = run([10, 10, 10, 10]), run([140, 10, 10, 10])
    slow.comm.loc[0, "blocked_ns"] = 100
    (row,) = diff(usual, slow).to_dict("records")
    assert (row["calls_before"], row["calls_after"]) == (1, 1)
    assert (row["blocked_ns_before"], row["blocked_ns_after"]) == (5, 5)
    said = "Times of the second run are per steady step, step 0 left out: 14 × the median."
    assert said in differences_of_runs(usual, slow)


def test_a_part_that_was_asked_for_has_all_of_its_steps() -> None:
    part = of_steps(run([140, 10, 10, 10]), 0, 2)
    assert left_out(part) == {}
