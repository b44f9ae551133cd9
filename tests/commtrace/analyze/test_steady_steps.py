"""Steps that take much longer than the others are left out of shares, and named."""

from __future__ import annotations

from typing import Any

import pytest

from commtrace.analyze import CATALOG, Frames
from commtrace.analyze.steady_steps import left_out, left_out_text
from commtrace.analyze.time_window import of_steps
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


def test_a_part_that_was_asked_for_has_all_of_its_steps() -> None:
    part = of_steps(run([140, 10, 10, 10]), 0, 2)
    assert left_out(part) == {}
