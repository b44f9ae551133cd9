from __future__ import annotations

from collections import defaultdict

import pytest

from commtrace.analyze import load
from commtrace.analyze.traffic.by_rank import by_rank
from commtrace.analyze.waits.rank_waits import OTHER, rank_waits
from commtrace.analyze.waits.wait_states import STATES, wait_states
from commtrace.tracefile import Trace
from tests.commtrace.analyze.by_hand import rows, waits_of
from tests.commtrace.analyze.measures.test_arrivals import collective, moved
from tests.commtrace.analyze.rows import call, random_trace, run_of
from tests.commtrace.analyze.training import training_trace

TRACES = [random_trace(seed) for seed in range(3)] + [training_trace()]


def test_each_rank_has_its_own_waits_by_their_names() -> None:
    table = rank_waits(run_of(collective("all_reduce", [10, 40], 100)))
    assert table.values.tolist() == [
        [0, "Wait at N x N", 1, 1, 30, 60, 0, 0],
        [1, "Wait at N x N", 1, 0, 0, 60, 0, 0],
    ]


def test_the_receiver_of_a_late_send_waits() -> None:
    table = rank_waits(run_of(moved(send=(50, 60), recv=(10, 60))))
    assert table[["rank", "state", "wait_ns", "transfer_ns"]].values.tolist() == [
        [0, "Late Receiver", 0, 10],
        [1, "Late Sender", 40, 10],
    ]


def test_what_is_not_known_to_be_wait_or_transfer_is_distinguished() -> None:
    alone = call(at=0, until=9, seq=0, call_ns=9, blocked_ns=9)
    other = call(kind="made_up", at=20, until=29, seq=1, call_ns=5, blocked_ns=5)
    table = rank_waits(run_of([alone, other]))
    assert table[["state", "wait_ns", "transfer_ns", "unknown_ns"]].values.tolist() == [
        ["Wait at N x N", -1, -1, 9],
        [OTHER, -1, -1, 5],
    ]


def test_times_of_calls_that_were_not_timed_are_unknown() -> None:
    calls = [call(rank=rank, id=n, seq=n, at=20 * n) for rank in range(2) for n in range(3)]
    assert rank_waits(run_of(calls)).values.tolist() == [
        [rank, "Wait at N x N", 3, -1, -1, -1, -1, 3] for rank in range(2)
    ]
    calls[0] = calls[0]._replace(blocked_ns=7)
    assert rank_waits(run_of(calls)).values.tolist()[0] == [
        *(0, "Wait at N x N", 3, 0, 0, 7, 0, 2),
    ]


@pytest.mark.parametrize("trace", TRACES)
def test_waits_of_ranks_agree_with_loops(trace: Trace) -> None:
    expected: dict[tuple[int, str], list[int]] = defaultdict(lambda: [-1, -1, -1])
    for one, wait in zip(rows(trace, "comm"), waits_of(trace), strict=True):
        sums = expected[one.rank, STATES.get(one.kind, OTHER)]
        if wait is not None:
            sums[:] = max(sums[0], 0) + wait[0], max(sums[1], 0) + one.blocked_ns - wait[0], sums[2]
        if one.blocked_ns >= 0:
            sums[2] = max(sums[2], 0) + (0 if wait else one.blocked_ns)
    found = {
        (row.rank, row.state): [row.wait_ns, row.transfer_ns, row.unknown_ns]
        for row in rank_waits(load(trace)).itertuples(index=False)
    }
    assert found == expected


@pytest.mark.parametrize("trace", TRACES)
def test_times_add_up_to_what_each_rank_is_blocked_and_to_the_run_s_waits(trace: Trace) -> None:
    frames = load(trace)
    table = rank_waits(frames)
    parts = table[["wait_ns", "transfer_ns", "unknown_ns"]].clip(lower=0).sum(axis=1)
    blocked = parts.groupby(table["rank"]).sum()
    assert blocked.tolist() == by_rank(frames)["blocked_ns"].tolist()
    by_state = table[table["wait_ns"] > 0].groupby("state")["wait_ns"].sum()
    run = wait_states(frames).groupby("state")["wait_ns"].sum()
    assert by_state.to_dict() == run[run > 0].to_dict()
