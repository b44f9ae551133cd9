from __future__ import annotations

import math

import pytest

from commtrace.analyze.traffic.by_step import by_step
from tests.commtrace.analyze.rows import call, rank_row, run_of, step


def test_a_step_has_its_own_time_and_share() -> None:
    # Two ranks of 1,000,000 ns; step 0 takes 100 and 300 of them, step 1 takes 100 and 100.
    frames = run_of(
        [
            call(rank=0, step=0, blocked_ns=50, wire_bytes=8),
            call(rank=1, step=0, blocked_ns=150, wire_bytes=8),
            call(rank=0, step=-1, blocked_ns=998, wire_bytes=2),
        ],
        steps=[step(0, 0, 0, 100), step(1, 0, 0, 300), step(0, 1, 100, 200), step(1, 1, 300, 400)],
    )
    table = by_step(frames)
    assert table["step"].tolist() == [-1, 0, 1]
    assert table["duration_ns"].tolist() == [1_000_000 - 200 - 100, 200, 100]
    assert table["num_calls"].tolist() == [0.5, 1, 0]
    assert table["wire_bytes"].tolist()[:2] == [1, 8]
    assert table["share"].tolist()[:2] == pytest.approx([499 / 999_700, 0.5])
    assert math.isnan(table["share"].tolist()[2])


def test_steps_without_communication_before_them_need_no_row_outside() -> None:
    table = by_step(run_of([call(step=3)], steps=[step(0, 3, 0, 10)], num_ranks=1))
    assert table["step"].tolist() == [3]


def test_a_run_without_steps_is_all_outside() -> None:
    table = by_step(run_of([call(step=-1, blocked_ns=1000)], num_ranks=1))
    assert table[["step", "duration_ns", "num_calls", "share"]].to_numpy().tolist() == [
        [-1, 1_000_000, 1, 0.001]
    ]


def test_steps_that_outlast_the_recording_leave_no_time_outside() -> None:
    ranks = [rank_row(0, end_ns=-1)]
    frames = run_of([call(at=0, step=-1)], ranks=ranks, num_ranks=1, steps=[step(0, 0, 0, 90)])
    assert by_step(frames)["duration_ns"].tolist() == [0, 90]


def test_a_step_is_blocked_for_its_own_time_at_most() -> None:
    """Two threads are blocked at once, and a call blocks its rank beyond the end of the step."""
    frames = run_of(
        [
            call(id=0, step=0, at=10, until=90, call_ns=80, blocked_ns=80),
            call(id=1, seq=1, step=0, at=20, until=90, call_ns=70, blocked_ns=70),
            call(id=2, seq=2, step=1, at=110, until=260, call_ns=150, blocked_ns=150),
        ],
        num_ranks=1,
        steps=[step(0, 0, 0, 100), step(0, 1, 100, 200)],
    )
    table = by_step(frames)
    assert table["blocked_ns"].tolist() == [80, 100]
    assert table["share"].tolist() == [0.8, 1.0]
