"""Consistency check across the ranks of a run, as a table.

The order of the trace's ranks and rows does not matter. An empty table means that no compared call
disagrees with the calls of its peers in kind, reduction, root, type, size or order; `compared`
returns the number of compared calls.
"""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.consistency.absences import (
    absences,
    losses,
    missing_calls,
    missing_ranks,
    not_compared,
)
from commtrace.analyze.consistency.awaited import lone_waits, pairs_of_lone
from commtrace.analyze.consistency.coverage import coverage
from commtrace.analyze.consistency.creation import (
    inside_creation,
    unlike_creation,
    unlike_groups,
)
from commtrace.analyze.consistency.deadlocks import (
    deadlock_cycles,
    deadlocks,
    explained_by,
    rows_of,
    text_of_cycle,
)
from commtrace.analyze.consistency.disagreements import (
    disagreements,
    first_disagreements,
    first_unlike_reductions,
)
from commtrace.analyze.consistency.endless import endless_calls
from commtrace.analyze.consistency.in_flight import (
    calls_in_flight,
    explained_absences,
    stuck_calls,
)
from commtrace.analyze.consistency.lost_ranks import lost_ranks, stalled_ranks
from commtrace.analyze.consistency.order import crossed_orders
from commtrace.analyze.consistency.problem import COLUMNS
from commtrace.analyze.consistency.progress import groups_in_progress, unlike_progress
from commtrace.analyze.consistency.races import races
from commtrace.analyze.consistency.reductions import wrongly_reduced
from commtrace.analyze.consistency.replicas import differing_replicas
from commtrace.analyze.consistency.still_running import without_recent
from commtrace.analyze.consistency.transfers import unmatched_transfers
from commtrace.analyze.consistency.waiting import (
    Wait,
    hanging_calls,
    hangs_in,
    waits,
    waits_by_numbers,
    waits_for_groups,
    without_held_up,
)
from commtrace.analyze.run.analysis import Analysis, typed
from commtrace.analyze.run.cached_per_run import of_run
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.program_folder import program_folder


@of_run
def consistency(frames: Frames) -> pd.DataFrame:
    """Return a row per problem, faults first, then by time; empty if there are none."""
    covered = coverage(frames)
    absent, differing, hanging = (
        absences(frames),
        first_disagreements(frames),
        hanging_calls(frames),
    )
    unlike = {*differing.items()} | {
        (group, number)
        for group, number in first_unlike_reductions(frames).items()
        if number < differing.get(group, number + 1)
    }
    progress = groups_in_progress(frames, covered)
    all_waits = [] if covered.has_timed_out_only else waits(hanging, covered, absent)
    all_waits += [*waits_by_numbers(progress), *waits_for_groups(frames)]
    all_rings = deadlock_cycles(all_waits)
    of_unlike = [each for each in all_rings if _is_of_unlike(frames, each)]
    rings = [each for each in all_rings if each not in of_unlike]
    since_unlike = "; ".join(map(text_of_cycle, of_unlike))
    stuck = stuck_calls(frames, covered)
    explained = explained_by(all_rings)
    disordered = {name for name, *_ in frames.run.get("unlike_groups") or ()}
    unexplained = [
        each
        for each in absent
        if each.group.partition(" [")[0] not in disordered
        and (each.group, each.number) not in explained | explained_absences(absent, stuck)
        and each.number <= differing.get(each.group, each.number)
    ]
    # An imported call may have ended, though its end is unknown.
    in_calls = hanging.iloc[:0] if covered.imported_from else without_held_up(frames, hanging)
    inside = inside_creation(frames) | hangs_in(in_calls, all_waits)
    pairs = pairs_of_lone(all_waits, inside)
    unmatched = unmatched_transfers(frames, covered, rows_of(all_rings))
    problems = [
        *disagreements(frames, covered, unlike),
        *missing_calls(frames, covered, unexplained, inside),
        *lone_waits(frames, covered, all_waits, inside),
        *crossed_orders(frames, covered, differing),
        *(each for each in unmatched if each.ranks not in pairs),
        *differing_replicas(frames),
        *wrongly_reduced(frames),
        *races(frames),
        *deadlocks(frames, covered, rings, all_waits),
        *missing_ranks(frames, covered),
        *unlike_groups(frames, covered, since_unlike),
        *losses(covered, absent),
        *not_compared(covered),
        *unlike_progress(frames, progress, differing, explained),
    ]
    if not any(each.is_fault for each in problems):
        problems += missing_calls(frames, covered, unexplained, inside, of_victims=True)
    if not any(each.is_fault for each in problems):
        problems += [*lost_ranks(frames)] or [*stalled_ranks(frames)]
    if not (covered.imported_from or any(each.is_fault for each in problems)):
        problems += endless_calls(frames, covered, hanging)
    problems = [*without_recent(frames, problems)]
    faults = [each.at_ns for each in problems if each.is_fault and each.at_ns >= 0]
    problems += calls_in_flight(covered, stuck, min(faults, default=None))
    problems.sort(key=lambda each: (not each.is_fault, each.at_ns < 0, each.at_ns, each.row()))
    folder = program_folder(frames)
    rows = [problem.row(folder) for problem in problems]
    return typed(pd.DataFrame(rows, columns=[column.name for column in COLUMNS]), COLUMNS)


def _is_of_unlike(frames: Frames, ring: list[Wait]) -> bool:
    """Return whether a rank of a cycle waits in the first unlike creation, or in a later one."""
    unlike = unlike_creation(frames)
    return unlike is not None and any(wait.creation >= unlike[0] for wait in ring)


CONSISTENCY = Analysis(
    "consistency",
    "Consistency",
    "Do all ranks make the same calls, in an order without deadlocks?",
    consistency,
    COLUMNS,
)
