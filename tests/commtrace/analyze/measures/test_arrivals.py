from __future__ import annotations

from typing import Any

import pytest

from commtrace.analyze.measures.arrivals import arrivals, end_ns
from tests.commtrace.analyze.rows import START_NS, call, group, run_of

UNKNOWN = (-1, -1, -1)


def collective(kind: str, arrivals: list[int], leaves: int, **shared: Any) -> list[Any]:
    """One collective at which rank r arrives at comes[r]; all are blocked until `leaves`."""
    return [
        call(
            rank=rank,
            kind=kind,
            at=at,
            until=leaves,
            call_ns=leaves - at,
            blocked_ns=leaves - at,
            **({"seq": 0} | shared),
        )
        for rank, at in enumerate(arrivals)
    ]


def waits(calls: list[Any], **more: Any) -> list[tuple[int, int, int]]:
    """(wait, transfer, last rank) of each call."""
    table = arrivals(run_of(calls, **more))
    return list(zip(table["wait_ns"], table["transfer_ns"], table["last_rank"], strict=True))


@pytest.mark.parametrize(
    "kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"]
)
def test_everyone_waits_for_the_last_one(kind: str) -> None:
    assert waits(collective(kind, [10, 40], 100)) == [(30, 60, 1), (0, 60, 1)]


@pytest.mark.parametrize("kind", ["broadcast", "scatter"])
def test_receivers_wait_for_the_root_and_it_for_nobody(kind: str) -> None:
    early_root = collective(kind, [10, 40, 50], 100, root=0)
    assert waits(early_root, num_ranks=3) == [(0, 90, 0), (0, 60, 1), (0, 50, 2)]
    late_root = collective(kind, [10, 40, 20], 100, root=1)
    assert waits(late_root, num_ranks=3) == [(30, 60, 1), (0, 60, 1), (20, 60, 1)]


@pytest.mark.parametrize("kind", ["reduce", "gather"])
def test_the_root_waits_for_all_and_the_others_for_nobody(kind: str) -> None:
    calls = collective(kind, [10, 40, 20], 100, root=0)
    assert waits(calls, num_ranks=3) == [(30, 60, 1), (0, 60, 1), (0, 80, 2)]


def test_who_comes_at_the_same_time_waits_for_nobody() -> None:
    assert waits(collective("all_reduce", [10, 10], 50)) == [(0, 40, 0), (0, 40, 1)]


def test_of_several_that_come_last_together_the_lowest_is_named() -> None:
    late = waits(collective("all_reduce", [10, 40, 40], 100), num_ranks=3)
    assert late == [(30, 60, 1), (0, 60, 1), (0, 60, 2)]


def test_of_a_call_that_returns_early_only_the_blocked_part_can_wait() -> None:
    # Rank 0 is blocked from 0 to 10 and from 70 to 100; rank 1 arrives at 80.
    calls = [
        call(rank=0, seq=0, at=0, until=100, call_ns=10, blocked_ns=40, is_async=True),
        call(rank=1, seq=0, at=80, until=100, call_ns=20, blocked_ns=20),
    ]
    assert waits(calls) == [(10 + 10, 20, 1), (0, 20, 1)]


def test_a_late_peer_cannot_make_a_rank_wait_longer_than_it_was_blocked() -> None:
    calls = [
        call(rank=0, seq=0, at=0, until=100, call_ns=10, blocked_ns=10),
        call(rank=1, seq=0, at=80, until=100, call_ns=20, blocked_ns=20),
    ]
    assert waits(calls)[0] == (10, 0, 1)


def test_a_collective_with_a_missing_member_has_no_known_wait() -> None:
    assert waits(collective("all_reduce", [10, 40], 100), num_ranks=3) == [UNKNOWN, UNKNOWN]


def test_members_that_disagree_on_the_kind_have_no_known_wait() -> None:
    calls = [collective("all_reduce", [10, 40], 100)[0], collective("all_gather", [10, 40], 100)[1]]
    assert waits(calls) == [UNKNOWN, UNKNOWN]


def test_a_rank_that_appears_twice_makes_the_collective_unknown() -> None:
    calls = [collective("all_reduce", [10, 40], 100)[0], collective("all_reduce", [10, 40], 100)[0]]
    assert waits(calls) == [UNKNOWN, UNKNOWN]


@pytest.mark.parametrize(
    "shared", [{"kind": "send"}, {"kind": "recv"}, {"seq": -1}, {"blocked_ns": -1}, {"group": "?"}]
)
def test_what_cannot_be_matched_has_no_known_wait(shared: dict[str, Any]) -> None:
    calls = [
        row._replace(**shared)
        for row in collective(shared.get("kind", "all_reduce"), [10, 40], 100)
    ]
    assert waits(calls) == [UNKNOWN, UNKNOWN]


def test_a_broadcast_whose_root_is_not_known_has_no_known_wait() -> None:
    assert waits(collective("broadcast", [10, 40], 100)) == [UNKNOWN, UNKNOWN]


def test_equal_numbers_on_different_groups_are_different_collectives() -> None:
    groups = [group("g", (0, 1)), group("h", (0, 1))]
    calls = collective("all_reduce", [10, 40], 100) + collective(
        "all_reduce", [200, 210], 300, group="h"
    )
    assert waits(calls, groups=groups) == [(30, 60, 1), (0, 60, 1), (10, 90, 1), (0, 90, 1)]


def test_nanoseconds_since_the_epoch_are_kept_exactly() -> None:
    table = arrivals(run_of(collective("all_reduce", [1, 4], 9)))
    assert table["arrival_ns"].tolist() == [START_NS + 4, START_NS + 4]
    assert table["wait_ns"].tolist() == [3, 0]


def test_a_call_whose_end_is_not_known_lasts_as_long_as_it_blocked() -> None:
    frames = run_of([call(at=5, blocked_ns=7, call_ns=3), call(at=5), call(at=5, until=9)])
    assert (end_ns(frames.comm) - START_NS).tolist() == [12, 5, 9]


def test_a_run_without_communication_has_no_arrivals() -> None:
    assert arrivals(run_of()).empty


def moved(send: tuple[int, int], recv: tuple[int, int], **shared: Any) -> list[Any]:
    """A transfer from rank 0 to rank 1; each end is blocked in the given interval."""
    return [
        call(
            rank=rank,
            kind=kind,
            peer=1 - rank,
            at=begin,
            until=end,
            call_ns=end - begin,
            blocked_ns=end - begin,
            **({"seq": 0, "id": 0} | shared),
        )
        for rank, (kind, (begin, end)) in enumerate([("send", send), ("recv", recv)])
    ]


def test_a_receiver_waits_for_a_late_sender() -> None:
    assert waits(moved(send=(50, 60), recv=(10, 60))) == [(0, 10, 0), (40, 10, 0)]


def test_a_sender_waits_for_a_late_receiver_while_it_is_blocked() -> None:
    assert waits(moved(send=(10, 90), recv=(50, 90))) == [(40, 40, 1), (0, 40, 1)]
    assert waits(moved(send=(10, 12), recv=(50, 90))) == [(2, 0, 1), (0, 40, 1)]


def test_transfers_between_two_ranks_are_matched_in_their_order() -> None:
    calls = moved((50, 60), (10, 60)) + moved((70, 80), (65, 80), seq=1, id=1)
    assert waits(calls[::-1]) == [(5, 10, 0), (0, 10, 0), (40, 10, 0), (0, 10, 0)]


def test_a_transfer_whose_other_end_is_missing_has_no_known_wait() -> None:
    assert waits(moved((50, 60), (10, 60))[:1]) == [UNKNOWN]


def test_transfers_between_some_members_do_not_shift_the_collectives_of_all() -> None:
    ring = [row._replace(seq=1) for row in collective("all_reduce", [110, 120, 130], 200)]
    alone = ring[2]._replace(seq=0)  # rank 2 made no transfer, so its first call is this one
    found = waits([*moved((50, 60), (10, 60)), ring[0], ring[1], alone], num_ranks=3)
    assert found[2:] == [(20, 70, 2), (10, 70, 2), (0, 70, 2)]
