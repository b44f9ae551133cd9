"""Groups that ranks have created in different orders, by the dumps of several ranks.

All ranks must create their groups in the same order. torch names groups by a count, so that another
order gives the same name to groups with other members or descriptions; groups with names of their
own show it in `pg_id`, the number of a group among those that a rank has created. Only the order
of groups that two ranks have in common counts, since the numbers of a rank skip groups without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise
from typing import TypeAlias

from commtrace.importers.flight_recorder.entries import Dump, StatedGroup
from commtrace.units import text_of_ranks

UnlikeGroup: TypeAlias = "list[str]"
"""Name of a group, the ranks that differ from most, and the difference.

Ranks are written as in `0,1`; without a majority they are all ranks, by side, as in `0,1;2,3`.
"""

_MOST_GROUPS = 32
"""Number of groups of a rank up to which each pair of them is compared."""


def unlike_groups(dumps: Sequence[Dump], ranks: Sequence[int]) -> list[UnlikeGroup]:
    """Return the groups on whose identity or order of creation ranks disagree."""
    if any("#" in entry.group for dump in dumps for entry in dump.entries):
        return []  # groups that were created again: a rank may state the former ones
    return [*_of_other_members(dumps, ranks), *_of_other_order(dumps, ranks)]


def _of_other_members(dumps: Sequence[Dump], ranks: Sequence[int]) -> Iterator[UnlikeGroup]:
    # Equal texts of ranks are one object, and to hash or search it takes as long as it has ranks.
    stated: dict[str, dict[tuple[str, int], tuple[StatedGroup, list[int]]]] = {}
    members: dict[int, frozenset[int]] = {}
    for dump, rank in zip(dumps, ranks, strict=True):
        for name, about in dump.groups.items():
            place = id(about.ranks)
            if place not in members:
                members[place] = frozenset(about.ranks)
            if name and rank in members[place]:  # gloo states its groups without names
                known = stated.setdefault(name, {})
                known.setdefault((about.description, place), (about, []))[1].append(rank)
    for name, by_object in stated.items():
        of_name: dict[StatedGroup, list[int]] = {}
        for about, by in by_object.values():
            of_name.setdefault(about, []).extend(by)
        unlike = {
            about: by
            for pair in combinations(of_name.items(), 2)
            if _are_one(*pair)
            for about, by in pair
        }
        if len(of_name) <= _MOST_GROUPS and unlike:
            texts = [
                f"{about.description or 'a group'} of {text_of_ranks(about.ranks)} on "
                f"{text_of_ranks(by)}"
                for about, by in unlike.items()
            ]
            yield _problem(name, [*unlike.values()], f"Group {name} is {'; '.join(texts)}")


def _are_one(first: tuple[StatedGroup, list[int]], then: tuple[StatedGroup, list[int]]) -> bool:
    """Return whether two statements of a name are about a group that has both sides' ranks."""
    return not set(first[1]).isdisjoint(then[0].ranks) and not set(then[1]).isdisjoint(
        first[0].ranks
    )


_Pair: TypeAlias = "tuple[str, str]"


def _of_other_order(dumps: Sequence[Dump], ranks: Sequence[int]) -> Iterator[UnlikeGroup]:
    orders: dict[_Pair, list[int]] = {}
    for dump, rank in zip(dumps, ranks, strict=True):
        by_backend: dict[str, dict[str, int]] = {}
        for entry in dump.entries:
            by_backend.setdefault(entry.backend, {})[entry.group] = entry.pg_id
        for ids in by_backend.values():
            for pair in _pairs(ids, dump.groups):
                orders.setdefault(pair, []).append(rank)
    for (first, then), by in orders.items():
        others = orders.get((then, first), [])
        if others and first < then:
            text = (
                f"{text_of_ranks(by)} created group {first} before group {then}, "
                f"{text_of_ranks(others)} after it"
            )
            yield _problem(first, [by, others], text[0].upper() + text[1:])


def _pairs(ids: Mapping[str, int], groups: Mapping[str, StatedGroup]) -> Iterator[_Pair]:
    """Yield the groups of a rank in pairs, as it has created them, if their ranks are known."""
    ordered = sorted((name for name in ids if name in groups), key=ids.__getitem__)
    every = combinations(ordered, 2) if len(ordered) <= _MOST_GROUPS else pairwise(ordered)
    yield from every


def _problem(group: str, sides: Sequence[Sequence[int]], text: str) -> UnlikeGroup:
    most = max(map(len, sides))
    few = [rank for side in sides if len(side) < most for rank in side]
    has_majority = sum(len(side) == most for side in sides) == 1
    doubtful = [few] if has_majority else sides
    return [group, ";".join(",".join(map(str, sorted(side))) for side in doubtful), text]
