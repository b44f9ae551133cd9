from __future__ import annotations

import pytest

from benchmarks.large_run import large_trace
from commtrace.analyze import Frames, load
from commtrace.analyze.activity import activity
from commtrace.analyze.balance import balance
from commtrace.analyze.overlap import overlap
from commtrace.tracefile import Trace
from tests.benchmarks.test_large_run import PLAN
from tests.commtrace.analyze.by_hand import duration_of, rows
from tests.commtrace.analyze.rows import START_NS, call, random_trace, run_of, step
from tests.commtrace.analyze.training import training_trace


def one_rank() -> Frames:
    # An all-reduce blocks from 0 to 10. A reduce-scatter is in flight from 20 to 60, in its call
    # until 22 and waited for from 50 on. Another one from 40 to 70 blocks from 55 on.
    calls = [
        call(id=0, step=0, at=0, until=10, call_ns=10, blocked_ns=10),
        call(id=1, step=0, at=20, until=60, call_ns=2, blocked_ns=12, is_async=True),
        call(id=2, step=0, at=40, until=70, call_ns=0, blocked_ns=15, is_async=True),
    ]
    return run_of(calls, num_ranks=1, steps=[step(0, 0, 0, 100)])


def test_exposed_is_blocked_and_the_rest_is_overlapped() -> None:
    row = overlap(one_rank()).iloc[0]
    assert row["communication_ns"] == 10 + 50  # 20 to 70 counts once
    assert row["exposed_ns"] == 10 + 2 + 20  # as does 50 to 70
    assert row["overlapped_ns"] == 28
    assert row["exposed_share"] == 0.32
    assert row["overlapped_share"] == pytest.approx(28 / 60)


def test_a_call_that_nobody_is_known_to_wait_for_is_not_taken_for_hidden() -> None:
    calls = [
        call(id=0, step=0, at=0, until=10, call_ns=10, blocked_ns=10),
        call(id=1, step=0, at=5, until=65, call_ns=1, blocked_ns=-1, is_async=True),
    ]
    row = overlap(run_of(calls, num_ranks=1, steps=[step(0, 0, 0, 100)])).iloc[0]
    assert (row["communication_ns"], row["exposed_ns"]) == (65, 10)
    assert (row["unknown_ns"], row["overlapped_ns"], row["overlapped_share"]) == (55, 0, 0)


def test_what_a_rank_does_follows_without_gaps() -> None:
    table = activity(one_rank())
    intervals = list(
        zip(
            table["start_ns"] - START_NS,
            table["duration_ns"],
            table["activity"],
            table["id"],
            strict=True,
        )
    )
    assert intervals == [
        (0, 10, "transferring", 0),
        (10, 10, "working", -1),
        (20, 2, "transferring", 1),
        (22, 28, "working", -1),
        (50, 10, "transferring", 1),
        (60, 10, "transferring", 2),
    ]


def test_a_wait_for_a_late_rank_is_distinguished_from_the_transfer() -> None:
    calls = [
        call(rank=r, seq=0, at=at, until=100, call_ns=100 - at, blocked_ns=100 - at)
        for r, at in enumerate((10, 60))
    ]
    table = activity(run_of(calls))
    assert table[["rank", "duration_ns", "activity"]].values.tolist() == [
        [0, 50, "waiting"],
        [0, 40, "transferring"],
        [1, 40, "transferring"],
    ]


def test_balance_is_mean_over_maximum() -> None:
    calls = [
        call(rank=0, step=0, at=0, until=60, blocked_ns=60, call_ns=60),
        call(rank=1, step=0, at=0, until=20, blocked_ns=20, call_ns=20),
    ]
    row = balance(run_of(calls, steps=[step(0, 0, 0, 100), step(1, 0, 0, 100)])).iloc[-1]
    assert (row["mean_useful_ns"], row["max_useful_ns"], row["busiest_rank"]) == (60, 80, 1)
    assert row["load_balance"] == 0.75
    assert row["communication_efficiency"] == 0.8
    assert row["parallel_efficiency"] == pytest.approx(0.6)
    assert row["imbalance"] == pytest.approx(1 / 3)


def covered(intervals: list[tuple[int, int]]) -> int:
    """Total time covered by the intervals, computed by walking from end to end."""
    total, reached = 0, min((start for start, _ in intervals), default=0)
    for start, end in sorted(intervals):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


@pytest.mark.parametrize(
    "trace", [random_trace(0), random_trace(5), training_trace(), large_trace(PLAN)]
)
def test_overlap_agrees_with_loops(trace: Trace) -> None:
    comm = [call for call in rows(trace, "comm") if call.issue_ns >= 0]
    calls: dict[tuple[int, int], list] = {}
    for each in comm:
        calls.setdefault((each.step, each.rank), []).append(each)
    for row in overlap(load(trace)).to_dict("records"):
        own = calls.get((row["step"], row["rank"]), [])
        under_way = [(c.issue_ns, c.issue_ns + duration_of(c)) for c in own]
        blocked = []
        for c in own:
            in_call = min(max(c.call_ns, 0), max(c.blocked_ns, 0))
            end = c.issue_ns + duration_of(c)
            blocked += [(c.issue_ns, c.issue_ns + in_call)]
            blocked += [(end - (max(c.blocked_ns, 0) - in_call), end)]
        assert row["communication_ns"] == covered(under_way)
        assert row["exposed_ns"] == covered(blocked)


def test_the_planted_overlap_is_found() -> None:
    table = overlap(load(large_trace(PLAN)))
    inside = table[table["step"] >= 0]
    assert (inside["overlapped_ns"] > 0).all()
    assert (inside["exposed_ns"] + inside["overlapped_ns"] == inside["communication_ns"]).all()


def test_a_wait_that_outlasts_completion_blocks_no_time_before_the_call() -> None:
    # Issued at 100, returned at 110, complete at 150; waits lasted 70 in all, beyond completion.
    calls = [call(id=0, step=0, at=100, until=150, call_ns=10, blocked_ns=80, is_async=True)]
    table = overlap(run_of(calls, num_ranks=1, steps=[step(0, 0, 0, 1000)]))
    row = table[table["step"] == 0].iloc[0]
    assert (row["communication_ns"], row["exposed_ns"], row["overlapped_ns"]) == (50, 50, 0)
