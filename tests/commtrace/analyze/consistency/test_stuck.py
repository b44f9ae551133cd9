"""Members that wait in a collective, by their progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from commtrace.analyze.consistency.problem import Problem
from commtrace.analyze.consistency.stuck import MembersProgress, RankProgress, stuck_members

REDUCE = ("all_reduce", "[8]", -1)


def at(issued: int, completed: int) -> RankProgress:
    in_flight = {number: REDUCE for number in range(completed + 1, issued + 1)}
    return RankProgress(issued, completed, in_flight)


def problems(
    ranks: Mapping[int, RankProgress],
    silent: tuple[int, ...] = (),
    differs_at: int | None = None,
    **facts: Any,
) -> list[Problem]:
    return [*stuck_members(MembersProgress("0", ranks, silent, **facts), differs_at)]


def test_members_that_have_completed_what_they_issued_are_not_stuck() -> None:
    assert problems({0: at(8, 8), 1: at(7, 7)}) == []


def test_if_all_members_issued_the_call_it_is_no_desync() -> None:
    (problem,) = problems({0: at(8, 7), 1: at(9, 7)})
    assert (problem.problem, problem.ranks, problem.number) == ("hanging call", "", 8)
    assert problem.explanation.startswith("All ranks issued all_reduce SeqNum 8 of group 0")


@pytest.mark.parametrize(
    ("behind", "problem", "blamed"),
    [
        ((2,), "missing call", "2"),
        ((1, 2, 3), "extra call", "0"),
        ((2, 3), "missing call", "0,1,2,3"),
    ],
)
def test_the_minority_is_blamed_and_of_halves_either(
    behind: tuple[int, ...], problem: str, blamed: str
) -> None:
    (found,) = problems({rank: at(7, 7) if rank in behind else at(8, 7) for rank in range(4)})
    assert (found.problem, found.ranks) == (problem, blamed)


def test_of_two_members_of_which_one_waits_both_are_named() -> None:
    (found,) = problems({0: at(8, 7), 1: at(7, 7)})
    assert (found.problem, found.ranks) == ("missing call", "0,1")
    assert found.is_one_of_ranks


def test_nobody_is_blamed_in_a_group_with_transfers() -> None:
    ranks = {0: at(8, 7), 1: at(8, 7), 2: at(5, 5)}
    (found,) = problems(ranks, named="pp", transfers=("recv", "send"))
    assert (found.problem, found.is_fault, found.ranks) == ("hanging call", True, "")
    assert found.explanation == (
        "Ranks 0, 1 wait in recv or send of pp (group 0). The rank that is behind is unknown: "
        "torch numbers sends and receives on each rank separately."
    )


@pytest.mark.parametrize(
    ("ranks", "problem", "blamed"),
    [
        ({0: (8, 7), 1: (8, 7), 2: (7, 7)}, "missing call", "2"),
        ({0: (8, 7), 1: (7, 7), 2: (7, 7)}, "extra call", ""),
        ({0: (8, 7), 1: (8, 7), 2: (8, 5)}, "hanging call", ""),
        ({0: (8, 7), 1: (9, 8), 2: (7, 7)}, "hanging call", ""),
        ({0: (8, 8), 1: (8, 8), 2: (7, 7)}, "", ""),
    ],
)
def test_calls_that_are_not_listed_may_be_transfers_so_only_a_minority_that_lacks_one_is_blamed(
    ranks: Mapping[int, tuple[int, int]], problem: str, blamed: str
) -> None:
    progress = {rank: RankProgress(*numbers, {}) for rank, numbers in ranks.items()}
    found = problems(progress, is_listed=False)
    assert [(each.problem, each.ranks) for each in found] == [(problem, blamed)] * bool(problem)


def test_silent_members_are_named_as_unknown_and_never_blamed() -> None:
    (problem,) = problems({0: at(8, 7), 1: at(8, 7)}, silent=(2,))
    assert problem.ranks == ""
    assert problem.explanation.endswith("Rank 2 wrote nothing: progress unknown.")


def test_an_earlier_disagreement_is_the_cause() -> None:
    assert problems({0: at(8, 7), 1: at(7, 7)}, differs_at=8) == []
    assert problems({0: at(8, 7), 1: at(7, 7)}, differs_at=9)


def test_without_counts_a_member_waits_in_its_first_call_in_flight() -> None:
    ranks = {0: RankProgress(8, -1, {8: REDUCE, 9: REDUCE}), 1: RankProgress(7, -1, {7: REDUCE})}
    (problem,) = problems(ranks)
    assert problem.number == 7
