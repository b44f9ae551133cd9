from __future__ import annotations

import math

import pytest

from benchmarks.large_run import large_trace
from commtrace.analyze import Frames, load
from commtrace.analyze.overlap.overlap import overlap
from commtrace.analyze.waits.activity import activity
from commtrace.analyze.waits.balance import balance
from commtrace.tracefile import Trace
from tests.benchmarks.test_large_run import PLAN
from tests.commtrace.analyze.by_hand import duration_of, rows, time_of
from tests.commtrace.analyze.rows import START_NS, call, random_trace, rank_row, run_of, step
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


@pytest.mark.parametrize(
    ("known", "communication_ns"), [({"until": 65}, 60), ({}, -1), ({"call_ns": 4}, -1)]
)
def test_communication_that_was_not_timed_is_neither_exposed_nor_overlapped(
    known: dict[str, int], communication_ns: int
) -> None:
    frames = run_of(
        [call(id=0, step=0, at=5, is_async=True, **known)],
        num_ranks=1,
        steps=[step(0, 0, 0, 100), step(0, 1, 100, 200)],
    )
    untimed, idle = overlap(frames).to_dict("records")
    assert untimed["communication_ns"] == untimed["unknown_ns"] == communication_ns
    assert (untimed["exposed_ns"], untimed["overlapped_ns"]) == (-1, -1)
    assert math.isnan(untimed["exposed_share"])
    assert math.isnan(untimed["overlapped_share"])
    assert (untimed["num_calls"], untimed["num_untimed"]) == (1, 1)
    # Without a call, there is no communication.
    assert (idle["communication_ns"], idle["exposed_ns"], idle["exposed_share"]) == (0, 0, 0)


def test_a_step_of_unknown_duration_has_no_share() -> None:
    calls = [call(step=3, at=0, until=10, blocked_ns=10)]
    row = overlap(run_of(calls, num_ranks=1)).iloc[0]
    assert (row["step"], row["duration_ns"], row["exposed_ns"]) == (3, -1, 10)
    assert math.isnan(row["exposed_share"])


def test_ranks_that_were_not_timed_are_left_out_of_the_balance() -> None:
    calls = [
        call(rank=0, step=0, at=0, until=60, blocked_ns=60, call_ns=60),
        call(rank=1, step=0, at=0),
    ]
    steps = [step(rank, 0, 0, 100) for rank in range(2)]
    row = balance(run_of(calls, steps=steps)).iloc[-1]
    assert (row["mean_useful_ns"], row["max_useful_ns"], row["busiest_rank"]) == (40, 40, 0)
    assert row["num_unknown"] == 1
    row = balance(run_of(calls[1:], ranks=[rank_row(1)], steps=steps[1:])).iloc[-1]
    assert (row["max_useful_ns"], row["busiest_rank"], row["num_unknown"]) == (-1, -1, 1)
    assert all(math.isnan(row[name]) for name in ("mean_useful_ns", "load_balance"))


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


def test_what_a_rank_does_is_unknown_while_only_untimed_calls_are_in_flight() -> None:
    calls = [
        call(id=0, at=0, until=50, is_async=True),
        call(id=1, at=10, until=20, call_ns=10, blocked_ns=10),
        call(id=2, at=40, until=70, is_async=True),
        call(id=3, at=90, until=100, call_ns=10, blocked_ns=10),
        call(id=4, at=200),  # of unknown end
    ]
    table = activity(run_of(calls, num_ranks=1))
    assert table[["duration_ns", "activity", "id"]].values.tolist() == [
        [10, "unknown", 0],
        [10, "transferring", 1],
        [30, "unknown", 0],
        [20, "unknown", 2],
        [20, "working", -1],
        [10, "transferring", 3],
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
    calls: dict[tuple[int, int], list] = {}
    for each in rows(trace, "comm"):
        calls.setdefault((each.step, each.rank), []).append(each)
    for row in overlap(load(trace)).to_dict("records"):
        own = calls.get((row["step"], row["rank"]), [])
        under_way = [(c.issue_ns, c.issue_ns + time_of(c)) for c in own if time_of(c) >= 0]
        blocked = []
        for c in own:
            in_call = min(max(c.call_ns, 0), max(c.blocked_ns, 0))
            end = c.issue_ns + duration_of(c)
            blocked += [(c.issue_ns, c.issue_ns + in_call)]
            blocked += [(end - (max(c.blocked_ns, 0) - in_call), end)]
        is_unknown = own and not any(c.blocked_ns >= 0 for c in own)
        assert row["communication_ns"] == (covered(under_way) if under_way or not own else -1)
        most = row["duration_ns"] if row["duration_ns"] >= 0 else float("inf")
        assert row["exposed_ns"] == (-1 if is_unknown else min(covered(blocked), most))


def test_the_injected_overlap_is_found() -> None:
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
