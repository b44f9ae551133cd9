from __future__ import annotations

from commtrace.analyze.run.matching import members, numbers, partners
from tests.commtrace.analyze.rows import call, group, run_of


def test_a_collective_s_number_leaves_out_the_transfers_before_it() -> None:
    frames = run_of(
        [
            call(rank=0, seq=0),
            call(rank=0, seq=1, kind="send", peer=1),
            call(rank=0, seq=3),
            call(rank=0, seq=2, kind="recv", peer=1),
            call(rank=1, seq=0),
            call(rank=0, seq=1, group="h"),
            call(rank=0, seq=-1),
        ]
    )
    assert numbers(frames).tolist() == [0, -1, 1, -1, 0, 1, -1]


def test_after_lost_calls_a_number_is_not_known_where_a_transfer_may_be_among_them() -> None:
    calls = [call(seq=0), call(seq=2), call(rank=1, seq=0, kind="send", peer=0)]
    assert numbers(run_of(calls)).tolist() == [0, -1, -1]
    assert numbers(run_of(calls[:2])).tolist() == [0, 2]


def test_without_transfers_a_number_is_the_sequence_number() -> None:
    assert numbers(run_of([call(seq=4), call(seq=2)])).tolist() == [4, 2]
    assert numbers(run_of()).tolist() == []


def test_partners_name_each_other() -> None:
    frames = run_of(
        [
            call(rank=0, id=0, kind="send", peer=1),
            call(rank=0, id=1, kind="send", peer=1),
            call(rank=0, id=2, kind="recv", peer=1),
            call(rank=1, id=5, kind="recv", peer=0),
            call(rank=1, id=9, kind="recv", peer=-1),
            call(rank=1, id=3, kind="send", peer=0, group="h"),
        ]
    )
    assert partners(frames).tolist() == [3, -1, -1, 0, -1, -1]


def test_members_come_in_group_order() -> None:
    frames = run_of(groups=[group("g", (3, 1)), group("lost", ())])
    assert members(frames).values.tolist() == [["g", 3, 0], ["g", 1, 1]]
