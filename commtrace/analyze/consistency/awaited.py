"""Ranks in no call that other ranks wait for in transfers or in the creation of a group.

Module `absences` does the same for collectives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from commtrace.analyze.consistency.coverage import Coverage
from commtrace.analyze.consistency.departures import departures
from commtrace.analyze.consistency.ends import HELD_UP, ends
from commtrace.analyze.consistency.problem import Problem, at_the_start, fewer_of, numbers_text
from commtrace.analyze.consistency.waiting import Wait
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import SEND
from commtrace.units import text_of_ranks


def lone_waits(
    frames: Frames, covered: Coverage, all_waits: list[Wait], inside: Mapping[int, str]
) -> Iterator[Problem]:
    """Yield the waits for ranks in no call, in transfers and in creations of groups.

    All waits for the same ranks form a single problem.

    Args:
        frames: The run.
        covered: Coverage of the run.
        all_waits: The waits of all ranks.
        inside: By rank, the call in which the rank hangs.
    """
    by_idle: dict[tuple[int, ...], list[Wait]] = {}
    for wait in all_waits:
        if idle := _idle(wait, inside):
            by_idle.setdefault(idle, []).append(wait)
    for idle, waits_for in by_idle.items():
        yield _of_idle(frames, covered, idle, waits_for)


def pairs_of_lone(all_waits: list[Wait], inside: Mapping[int, str]) -> set[str]:
    """Return the two ranks of each transfer that `lone_waits` reports, as in column `ranks`."""
    return {
        numbers_text((wait.rank, rank))
        for wait in all_waits
        if wait.creation < 0
        for rank in _idle(wait, inside)
    }


def _idle(wait: Wait, inside: Mapping[int, str]) -> tuple[int, ...]:
    """Return the ranks in no call that a transfer or a creation of a group waits for."""
    return () if wait.group else tuple(rank for rank in wait.others if rank not in inside)


def _of_idle(
    frames: Frames, covered: Coverage, idle: tuple[int, ...], waits_for: list[Wait]
) -> Problem:
    first = waits_for[0]
    waiting = [wait.rank for wait in waits_for]
    left = departures(frames, {*idle, *waiting})
    states = {rank: ends(frames)[rank] for rank in idle if rank in ends(frames)}
    are_held_up = bool(states) and {end.state for end in states.values()} <= HELD_UP
    have_left_out = all(rank in left and left[rank].is_left_out for rank in idle)
    blamed = {*idle} if are_held_up or have_left_out else {*idle, first.rank}
    is_one_of = len(blamed) > len(idle)
    if is_one_of and first.creation >= 0:
        side, is_one_of = fewer_of(idle, waiting)
        blamed = {*side}
    in_store = sorted(rank for rank, end in ends(frames).items() if end.is_waiting)
    outside = sorted(ends(frames).keys() - in_store)
    if states and all(end.is_waiting for end in states.values()) and outside:
        # They wait for the store themselves, for one of the ranks that do not.
        side, is_one_of = fewer_of(outside, in_store)
        blamed = {*side}
    verb = "has" if len(idle) == 1 else "have"
    if first.creation >= 0:
        made, group = "not called it", ""
    else:
        other = "recv" if first.text.startswith(SEND) else "send"
        made = f"made no {other} that matches"
        group = str(frames.calls_at([first.row]).iloc[0]["group"])
    lacks = f"{text_of_ranks(idle)} {verb} {made}"
    doing = "".join(
        f"; rank {rank} {end.sentence_part()}" for rank, end in states.items() if end.text
    )
    why = "".join(f" Rank {rank} {each.text()}." for rank, each in sorted(left.items()))
    return Problem(
        problem="missing call",
        is_fault=True,
        group=group,
        mesh_axis=covered.axes.get(group, ""),
        ranks=numbers_text(blamed),
        is_one_of_ranks=is_one_of,
        expected=f"by {text_of_ranks(idle)}",
        found="none",
        source=first.source,
        explanation=f"{at_the_start(waiting)} {'wait' if len(waiting) > 1 else 'waits'} in "
        f"{first.text}: {lacks}{doing}.{why}",
        at_ns=first.at_ns,
    )
