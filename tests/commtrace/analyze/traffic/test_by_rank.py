from __future__ import annotations

from commtrace.analyze.traffic.by_rank import by_rank
from tests.commtrace.analyze.rows import call, group, rank_row, run_of


def test_the_rank_that_comes_late_is_blocked_least_and_makes_others_wait() -> None:
    # Rank 1 arrives 70 after rank 0 and 40 after rank 2; all leave at 100.
    arrivals = {0: 0, 1: 70, 2: 30}
    calls = [
        call(
            rank=rank,
            seq=0,
            at=at,
            until=100,
            call_ns=100 - at,
            blocked_ns=100 - at,
            payload_bytes=6,
            wire_bytes=8,
        )
        for rank, at in arrivals.items()
    ]
    table = by_rank(run_of(calls, num_ranks=3))
    assert table["rank"].tolist() == [0, 1, 2]
    assert table["blocked_ns"].tolist() == [100, 30, 70]
    assert table["wait_ns"].tolist() == [70, 0, 40]
    assert table["caused_wait_ns"].tolist() == [0, 110, 0]
    assert table["num_last"].tolist() == [0, 1, 0]
    assert table["share"].tolist() == [0.0001, 0.00003, 0.00007]
    assert table["payload_bytes"].tolist() == [6, 6, 6]
    assert table["wire_bytes"].tolist() == [8, 8, 8]


def test_a_late_root_makes_the_receivers_wait_but_is_not_last_among_equals() -> None:
    calls = [
        call(rank=0, kind="broadcast", seq=0, root=1, at=0, until=90, call_ns=90, blocked_ns=90),
        call(rank=1, kind="broadcast", seq=0, root=1, at=60, until=90, call_ns=30, blocked_ns=30),
    ]
    table = by_rank(run_of(calls))
    assert table["caused_wait_ns"].tolist() == [0, 60]
    assert table["num_last"].tolist() == [-1, -1]


def test_a_rank_without_calls_has_a_row_with_its_host() -> None:
    ranks = [rank_row(0, host="a"), rank_row(1, host="b")]
    table = by_rank(run_of([call(rank=1, blocked_ns=5)], ranks=ranks, groups=[group()]))
    assert table["host"].tolist() == ["a", "b"]
    assert table["num_calls"].tolist() == [0, 1]
    assert table["blocked_ns"].tolist() == [0, 5]
    assert table["wait_ns"].tolist() == [0, -1]


def test_sums_of_calls_that_were_not_timed_are_unknown_and_not_0() -> None:
    ranks = [rank_row(rank) for rank in range(3)]
    untimed = [call(rank=rank, seq=0, at=5) for rank in (0, 1)]
    table = by_rank(run_of(untimed, ranks=ranks, groups=[group()]))
    for name in ("payload_bytes", "wire_bytes", "blocked_ns", "wait_ns", "caused_wait_ns"):
        assert table[name].tolist() == [-1, -1, 0], name
    assert table["share"].isna().tolist() == [True, True, False]
    assert table["num_last"].tolist() == [-1, -1, 0]
    assert table["num_untimed"].tolist() == [1, 1, 0]
    timed = call(id=1, seq=1, at=30, until=40, blocked_ns=10, wire_bytes=8)
    table = by_rank(run_of([*untimed, timed], ranks=ranks, groups=[group()]))
    assert table["blocked_ns"].tolist() == [10, -1, 0]
    assert table["wire_bytes"].tolist() == [8, -1, 0]
    assert table["num_untimed"].tolist() == [1, 1, 0]
