"""Deadlock cycles: ranks that wait for each other, so that none of them can proceed.

One rank of a cycle is blamed if it alone left out a call of its usual order, or if most ranks wait
in a call that it did not make.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from commtrace.analyze.consistency.coverage import Coverage
from commtrace.analyze.consistency.deadlock_cycle import components, graph_of, shortest_cycle
from commtrace.analyze.consistency.departures import (
    MOST_COMPARED,
    compared_with,
    departures,
)
from commtrace.analyze.consistency.problem import Problem, numbers_text
from commtrace.analyze.consistency.waiting import CallKey, Wait
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import RECV, SEND


def deadlock_cycles(all_waits: list[Wait]) -> list[list[Wait]]:
    """Return shortest deadlock cycles without common ranks or calls, one per deadlock.

    In a cycle, each rank waits for the next. The graph has a node for each wait and each call,
    so that all waits in a call share the edges to the waits of its missing ranks.
    """
    of_rank: dict[int, list[Wait]] = {}
    calls: dict[CallKey, tuple[int, ...]] = {}
    for wait in all_waits:
        of_rank.setdefault(wait.rank, []).append(wait)
        calls[wait.call] = wait.others
    # Without a rank that hangs and is waited for, there is no cycle.
    stuck = {rank for others in calls.values() for rank in others} & of_rank.keys()
    if not stuck:
        return []
    graph = graph_of(_edges(all_waits, calls, of_rank))
    in_cycles = set[Wait | CallKey]().union(*components(graph))
    found, taken = [], set[int | CallKey]()
    for wait in all_waits:
        if wait not in in_cycles or not taken.isdisjoint((wait.rank, wait.call)):
            continue
        cycle = [each for each in shortest_cycle(graph, wait) if isinstance(each, Wait)]
        parts = {part for each in cycle for part in (each.rank, each.call)}
        if taken.isdisjoint(parts):
            taken |= parts
            found.append(cycle)
    return found


def _edges(
    all_waits: list[Wait], calls: dict[CallKey, tuple[int, ...]], of_rank: dict[int, list[Wait]]
) -> Iterator[tuple[Wait | CallKey, Wait | CallKey]]:
    """Yield an edge from each wait to its call, and from each call to the waits it depends on."""
    yield from ((wait, wait.call) for wait in all_waits)
    for call, others in calls.items():
        yield from ((call, wait) for other in others for wait in of_rank.get(other, ()))


def deadlocks(
    frames: Frames, covered: Coverage, found: list[list[Wait]], all_waits: Iterable[Wait]
) -> Iterator[Problem]:
    """Yield a problem for each deadlock cycle, with the blamed rank if known.

    Args:
        frames: The run.
        covered: Coverage of the run.
        found: The cycles.
        all_waits: The waits of all ranks.
    """
    in_call: dict[CallKey, set[int]] = {}
    for wait in all_waits:
        if wait.is_of_all:
            in_call.setdefault(wait.call, set()).add(wait.rank)
    everyone = {wait.rank for wait in all_waits}
    for cycle in found:
        blamed, why = _departed(frames, cycle, in_call, everyone)
        ranks = blamed or {wait.rank for wait in cycle}
        own = next(place for place, wait in enumerate(cycle) if wait.rank in ranks)
        # The call in which a blamed rank is missing shows what it left out.
        calls = [cycle[own - 1], *cycle] if blamed else cycle
        missed = next((wait for wait in calls if wait.group), cycle[own])
        problem, differing = _differing(frames, cycle)
        yield Problem(
            problem=problem,
            is_fault=True,
            group=missed.group,
            mesh_axis=covered.axes.get(missed.group, ""),
            number=missed.number if missed.group else -1,
            ranks=numbers_text(ranks),
            is_one_of_ranks=not blamed,
            found="; ".join(wait.text for wait in cycle),
            source=cycle[own].source,
            explanation=f"{differing}Deadlock cycle: {text_of_cycle(cycle)}.{why}",
            at_ns=int(np.min([wait.at_ns for wait in cycle])),
        )


def text_of_cycle(cycle: list[Wait]) -> str:
    """Return for whom each rank of a cycle waits, and where."""
    following = [*cycle[1:], cycle[0]]
    return "; ".join(
        f"rank {wait.rank} waits in {_at(wait)} for rank {then.rank}"
        for wait, then in zip(cycle, following, strict=True)
    )


def _differing(frames: Frames, cycle: list[Wait]) -> tuple[str, str]:
    """Return the problem of a cycle, and a sentence if tags or groups of its calls differ."""
    if text := _tags_text(cycle):
        return "tag", text
    if text := _groups_text(frames, cycle):
        return "group order", text
    return "deadlock", ""


def _groups_text(frames: Frames, cycle: list[Wait]) -> str:
    """Return a sentence if ranks use different groups with the same members on the same line."""
    first = cycle[0]
    is_one_line = all(wait.group and wait.source == first.source != "" for wait in cycle)
    are_different = len({wait.group for wait in cycle}) == len(cycle)
    if not (is_one_line and are_different and _have_same_members(frames, cycle)):
        return ""
    used = "; ".join(f"rank {wait.rank} uses group {wait.group}" for wait in cycle)
    return (
        f"The groups of {first.source} differ, though their ranks are the same: {used}. They were "
        "created in another order, or are named by another variable. "
    )


def _at(wait: Wait) -> str:
    return f"{wait.text} at {wait.source}" if wait.source else wait.text


def _departed(
    frames: Frames, cycle: list[Wait], in_call: Mapping[CallKey, set[int]], everyone: set[int]
) -> tuple[set[int], str]:
    """Return the blamed ranks of a cycle, and a sentence on why.

    Ranks that left out a usual call are blamed, or else the only rank of all that wait, at least
    three, that left its usual order, or made a call that is new at its place, or else the rank in
    the call with the fewest waiting ranks.
    Nobody is blamed if all ranks of the cycle left out a call. A rank is not blamed for a new call
    that others make as well: it may be a new part of the program that the rest missed.
    """
    ranks = {wait.rank for wait in cycle}
    compared = everyone if len(everyone) <= MOST_COMPARED else ranks
    arrived = set[int]().union(*(in_call.get(wait.call, ()) for wait in cycle)) - ranks
    found = departures(frames, compared)
    found = compared_with(frames, found, sorted(arrived)[:MOST_COMPARED])
    left = {rank for rank, each in found.items() if each.is_left_out} & ranks
    text = "".join(
        f" Rank {rank} {each.text()}." for rank, each in sorted(found.items()) if rank in ranks
    )
    if 0 < len(left) < len(ranks):
        return left, text
    new = {rank for rank, each in found.items() if each.is_new}
    alone = {*found} if len(found) == 1 else new
    if len(alone) == 1 and compared == everyone and len(everyone) > 2 and ranks & alone:
        others = (
            "made a call that is new at its place" if len(found) > 1 else "left its usual order"
        )
        return alone, f"{text} No other rank {others}."
    num_in = Counter({call: len(waiting) for call, waiting in in_call.items()})
    fewest = min(cycle, key=lambda wait: num_in[wait.call])
    others = [num_in[wait.call] for wait in cycle if wait is not fewest]
    is_fewer = min(others) > num_in[fewest.call] > 0
    if not left and is_fewer and _have_same_members(frames, cycle):
        most = max(cycle, key=lambda wait: num_in[wait.call])
        return {fewest.rank}, f"{text} Most ranks wait in {most.text}."
    return set(), text


def _have_same_members(frames: Frames, cycle: list[Wait]) -> bool:
    """Return whether the groups of all calls of a cycle have the same members."""
    groups = frames.groups.astype({"name": object, "ranks": object})
    members = dict(zip(groups["name"], groups["ranks"], strict=True))
    everyone = numbers_text(frames.ranks["rank"].tolist())
    return (
        len(
            {
                everyone if wait.creation >= 0 else members.get(wait.group, wait.group)
                for wait in cycle
            }
        )
        == 1
    )


def _tags_text(cycle: list[Wait]) -> str:
    """Return a sentence if both ends of a transfer wait for each other with unequal tags."""
    if len(cycle) != 2 or any(wait.is_of_all for wait in cycle):
        return ""
    kinds = {wait.text.partition(" ")[0]: wait for wait in cycle}
    tags = {kind: wait.tag for kind, wait in kinds.items()}
    if len(tags) < 2 or min(tags.values()) < 0 or len(set(tags.values())) == 1:
        return ""
    return (
        f"The tags differ: rank {kinds[SEND].rank} sends with tag {tags[SEND]}, and rank "
        f"{kinds[RECV].rank} receives with tag {tags[RECV]}. "
    )


def explained_by(found: list[list[Wait]]) -> set[tuple[str, int]]:
    """Return the collectives in deadlock cycles, whose absences the cycles explain."""
    return {(wait.group, wait.number) for cycle in found for wait in cycle}


def rows_of(found: list[list[Wait]]) -> set[int]:
    """Return the rows of the calls in deadlock cycles."""
    return {wait.row for cycle in found for wait in cycle}
