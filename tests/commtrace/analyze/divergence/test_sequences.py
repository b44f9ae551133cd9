"""The place at which the calls of two ranks part, against how the sequences were made."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from commtrace.analyze.consistency.numbered import calls_of_ranks
from commtrace.analyze.divergence.sequences import Parting, parting
from tests.commtrace.analyze.rows import call, group, run_of

LABELS = {"g": "g", "other": "other", "mine": "a group of 1 ranks"}


def calls_at(rank: int, lines: Sequence[int], steps: Sequence[int] = ()) -> list[Any]:
    """Calls of a rank from lines of a file, in group `g`."""
    return [
        call(
            rank=rank, id=number, seq=number, at=1000 * number, kind="all_reduce", thread=7,
            source_file="train.py", source_line=line,
            step=steps[number] if steps else -1,
        )
        for number, line in enumerate(lines)
    ]  # fmt: skip


def parted(own: Sequence[Any], others: Sequence[Any], number: int) -> Parting:
    frames = run_of([*others, *own], groups=[group(name) for name in LABELS])
    return parting(calls_of_ranks(frames, [0, 1]), 1, 0, "g", number, LABELS)


def lines(found: Parting) -> tuple[int, int, int]:
    """Lines of the last common call, and of the next call of both."""
    rows = [found.common[0] if found.common else None, found.own, found.others]
    common, own, others = (-1 if row is None else int(row["source_line"]) for row in rows)
    return common, own, others


@pytest.mark.parametrize(
    ("own", "others", "expected"),
    [
        ([1, 2, 9], [1, 2, 3], (2, 9, 3)),
        ([1, 2], [1, 2, 3], (2, -1, 3)),
        ([1, 2, 3], [1, 2], (2, 3, -1)),
        ([9], [1], (-1, 9, 1)),
        # One more call, after which all calls look alike: the numbers differ by one at the end.
        ([1, 2, 1, 9, 2, 1, 2, 3], [1, 2, 1, 2, 1, 2, 3], (1, 9, 2)),
        # Branches of a root and of all others, in every step, are none.
        ([5, 1, 5, 1, 5, 1, 9], [6, 1, 6, 1, 6, 1, 2], (1, 9, 2)),
    ],
)
def test_the_first_call_that_differs_for_good_is_found(
    own: list[int], others: list[int], expected: tuple[int, int, int]
) -> None:
    number = min(len(own), len(others)) - (len(own) == len(others))
    assert lines(parted(calls_at(1, own), calls_at(0, others), number)) == expected


@pytest.mark.parametrize("seed", range(20))
def test_a_change_at_any_place_of_a_long_run_is_found(seed: int) -> None:
    chance = random.Random(seed)
    usual = [line for _ in range(300) for line in (1, 2, 3, 2)]
    place = chance.randrange(1, len(usual) - 4)
    changed = [*usual[:place], 99, *usual[place:]][: len(usual)]
    found = parted(calls_at(1, changed), calls_at(0, usual), len(usual) - 1)
    assert lines(found) == (usual[place - 1], 99, usual[place])


def test_a_step_shows_in_which_round_of_a_loop_a_call_is_missing() -> None:
    steps = [step for step in range(6) for _ in range(2)]
    own = [step for step in steps for _ in range(1)]
    del own[5]
    found = parted(calls_at(1, [1] * 11, own), calls_at(0, [1] * 12, steps), 11)
    assert found.common is not None
    assert found.own is not None
    assert found.common[0]["step"] == 2
    assert found.own["step"] == 3


def test_without_steps_the_place_is_uncertain_back_to_where_the_loop_began() -> None:
    found = parted(calls_at(1, [5, 1, 1, 1, 9]), calls_at(0, [5, 1, 1, 1, 1, 9]), 5)
    assert lines(found) == (1, 9, 1)
    assert found.earliest_ns == int(calls_at(1, [5, 1])[1].issue_ns)
    certain = parted(calls_at(1, [5, 1, 2, 3, 9]), calls_at(0, [5, 1, 2, 3, 4]), 4)
    assert certain.earliest_ns == -1


def test_a_call_out_of_turn_parts_where_it_is_made() -> None:
    found = parted(calls_at(1, [1, 2] * 3 + [1, 1]), calls_at(0, [1, 2] * 4), 7)
    assert lines(found) == (1, 1, 2)
    assert found.earliest_ns == -1
    later = parted(calls_at(1, [1, 2] * 3 + [9]), calls_at(0, [1, 2] * 4), 6)
    assert later.earliest_ns >= 0


def test_a_step_in_progress_on_one_rank_is_no_difference() -> None:
    found = parted(calls_at(1, [1, 1, 1], [0, 1, -1]), calls_at(0, [1, 1, 1, 1], [0, 1, 2, 2]), 3)
    assert lines(found) == (1, -1, 1)


def test_calls_of_another_group_that_both_use_come_first() -> None:
    own = calls_at(1, [1, 2])
    others = calls_at(0, [1, 2, 3])
    extra = {"seq": 0, "thread": 7, "source_file": "train.py", "group": "other"}
    both = [call(rank=0, id=9, source_line=7, **extra), call(rank=1, id=9, source_line=8, **extra)]
    found = parted([*own, both[1]], [*others[:2], both[0], others[2]._replace(id=10)], 2)
    assert lines(found) == (2, 8, 7)


def test_what_one_rank_does_in_a_group_of_its_own_is_no_difference() -> None:
    own, others = calls_at(1, [1, 2]), calls_at(0, [1, 2, 3])
    logs = call(rank=0, id=8, seq=0, group="mine", thread=7, source_file="log.py", source_line=4)
    found = parted(own, [*others[:2], logs, others[2]._replace(id=9)], 2)
    assert lines(found) == (2, -1, 3)


def test_the_first_call_of_a_group_of_both_is_a_difference() -> None:
    common = [each._replace(group="other") for rank in (1, 0) for each in calls_at(rank, [1, 2])]
    first = call(rank=0, id=9, seq=0, group="g", thread=7, source_file="train.py", source_line=3)
    assert lines(parted(common[:2], [*common[2:], first], 0)) == (2, -1, 3)


def test_calls_of_ranks_with_roles_are_compared_without_their_callers() -> None:
    """A server announces each request from another function than its workers follow it."""
    own, others = ([*calls_at(rank, [15, 19, 15, last])] for rank, last in ((1, 15), (0, 19)))
    roles = [
        [each._replace(callers=f"train.py:{line} {line}") for each in made]
        for made, line in ((own, 40), (others, 56))
    ]
    assert lines(parted(roles[0], roles[1], 3)) == (15, 15, 19)


@pytest.mark.parametrize(("peer", "expected"), [(0, (32, 36, 71)), (2, (1, 32, 31))])
def test_both_ends_of_a_transfer_are_no_parting(peer: int, expected: tuple[int, int, int]) -> None:
    own, others = (calls_at(rank, rows) for rank, rows in ((1, [1, 32, 36]), (0, [1, 31, 71])))
    own[1] = own[1]._replace(kind="send", peer=peer, seq=-1)
    others[1] = others[1]._replace(kind="recv", peer=1, seq=-1)
    own[2], others[2] = own[2]._replace(seq=1), others[2]._replace(seq=1)
    assert lines(parted(own, others, 1)) == expected
