"""Ranks missing from a collective that others of the group made, and calls lost by the recording.

Only recorded ranks can be reported as missing from a call. A rank without a recording is a separate
problem. A missing call is lost, and no fault of the program, if it was dropped at the limits of the
recording, if a profile ended before it, or if a recording was cut off although the collective
completed on other ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from commtrace.analyze.consistency.coverage import (
    INSPECTOR,
    OF_SOME_RANKS,
    PROFILER,
    Coverage,
    coverage,
    source_of,
)
from commtrace.analyze.consistency.departures import MOST_COMPARED, departures
from commtrace.analyze.consistency.ends import ENDED, HELD_UP, End, ends
from commtrace.analyze.consistency.numbered import calls_at_or_after, calls_of
from commtrace.analyze.consistency.problem import (
    Problem,
    at_the_start,
    call_text,
    fewer_of,
    numbers_text,
)
from commtrace.analyze.measures.arrivals import NEEDS_EVERYONE
from commtrace.analyze.run.cached_per_run import of_run
from commtrace.analyze.run.frame import Frames
from commtrace.units import counted, text_of_ranks

NOT_COMPARED = "not compared"
"""Problem of calls that cannot be matched across ranks."""


@dataclass(frozen=True, slots=True)
class Absence:
    """The first call of a group that some of its recorded members did not make.

    Attributes:
        present: Ranks that made the call.
        absent: Ranks without it.
        lost: Ranks of `absent` whose call the recording may have lost.
    """

    group: str
    number: int
    present: tuple[int, ...]
    absent: tuple[int, ...]
    lost: tuple[int, ...]


@of_run
def absences(frames: Frames) -> list[Absence]:
    """Return an absence for each group whose members made different numbers of calls."""
    covered = coverage(frames)
    reached = covered.reached[~covered.reached["rank"].isin(covered.unrecorded)]
    last_numbers = reached.groupby("group")["last"].agg(["min", "max"])
    uneven = last_numbers.index[last_numbers["min"] < last_numbers["max"]]
    rows_of = {
        group: rows for group, rows in reached[reached["group"].isin(uneven)].groupby("group")
    }
    if not rows_of:
        return []
    behind_of = {group: rows[rows["last"] < rows["last"].max()] for group, rows in rows_of.items()}
    lost_of = {group: _lost(covered, str(group), rows) for group, rows in behind_of.items()}
    made_last = {
        group: int((sure if len(sure) else behind)["last"].min())
        for group, behind in behind_of.items()
        for sure in [behind[~behind["rank"].isin(lost_of[group])]]
    }
    calls = calls_at_or_after(frames, [(str(group), last) for group, last in made_last.items()])
    found = []
    for group, rows in rows_of.items():
        behind, lost, last = behind_of[group], lost_of[group], made_last[group]
        of_group = calls[calls["group"] == group]
        has_sure = len(lost) < len(behind)
        if lost and has_sure and last >= 0 and not _went_through(of_group, last):
            # The other ranks may wait in this call for a rank in `lost`.
            lost |= set(behind["rank"])
        later = of_group.loc[of_group["number"] > last, "number"]
        if later.empty:  # only the status of a dump has it
            continue
        number = int(later.min())
        late = behind[behind["last"] < number]["rank"].tolist()
        # A profile may end on each rank at another call.
        if covered.imported_from == PROFILER or covered.has_timed_out_only:
            lost |= set(late)
        elif set(late) & covered.truncated and _went_through(of_group, number):
            lost |= set(late) & covered.truncated
        present = tuple(sorted(set(rows["rank"]) - set(late)))
        lost_late = tuple(sorted(lost & set(late)))
        found.append(Absence(str(group), number, present, tuple(late), lost_late))
    return found


def _lost(covered: Coverage, group: str, behind: pd.DataFrame) -> set[int]:
    """Return the ranks behind the others whose calls the trace may have lost."""
    return {
        rank
        for rank, last in zip(behind["rank"], behind["last"], strict=True)
        if rank in covered.dropping
        or (group, rank) in covered.unsure
        or (last < 0 and rank in covered.doubtful)
    }


def _went_through(calls: pd.DataFrame, number: int) -> bool:
    """Return whether a call has ended on a rank that waits for all others in it."""
    has_all = calls["kind"].isin(NEEDS_EVERYONE) & (calls["number"] == number)
    return bool((calls.loc[has_all, "complete_ns"] >= 0).any())


def missing_calls(
    frames: Frames,
    covered: Coverage,
    absent: list[Absence],
    inside: Mapping[int, str],
    *,
    of_victims: bool = False,
) -> Iterator[Problem]:
    """Yield the absences that are faults.

    A missing rank that waits in another call is a victim. If all missing ranks are victims, the
    absence is no fault.

    Args:
        frames: The run.
        covered: Coverage of the run.
        absent: The absences.
        inside: By rank, the call in which the rank hangs.
        of_victims: Yield instead the absences in which all missing ranks are victims.
    """
    faults = []
    for each in absent:
        missing = set(each.absent) - set(each.lost)
        if missing and (missing <= inside.keys()) == of_victims:
            faults.append(each)
    if not faults:
        return
    calls = calls_of(frames, {(each.group, each.number) for each in faults})
    by_ranks: dict[str, list[Problem]] = {}
    for each in faults:
        members = calls[(calls["group"] == each.group) & (calls["number"] == each.number)]
        problem = _problem_of(frames, covered, each, members.sort_values("rank"), inside)
        is_about_calls = problem.problem == "extra call" or covered.imported_from
        key = f"{each.group} {each.number}" if is_about_calls else problem.ranks
        by_ranks.setdefault(key, []).append(problem)
    for problems in by_ranks.values():
        yield _first_of(problems)


def _first_of(problems: Sequence[Problem]) -> Problem:
    """Return the earliest of the problems with the same missing ranks, which are a single fault."""
    first, *others = sorted(problems, key=lambda each: (each.at_ns, each.group))
    groups = counted(len(others), "other group")
    more = f" Calls in {groups} lack the same ranks." if others else ""
    return replace(first, explanation=first.explanation + more)


def _problem_of(
    frames: Frames,
    covered: Coverage,
    each: Absence,
    members: pd.DataFrame,
    inside: Mapping[int, str],
) -> Problem:
    missing = sorted(set(each.absent) - set(each.lost))
    idle = [rank for rank in missing if rank not in inside]
    states = {rank: ends(frames)[rank] for rank in idle if rank in ends(frames)}
    waiting = {rank for rank, end in states.items() if end.is_waiting}
    if waiting < set(idle):  # they may wait for one of the others
        idle = [rank for rank in idle if rank not in waiting]
        each = replace(each, absent=tuple(rank for rank in each.absent if rank not in waiting))
    are_waiting = bool((members["complete_ns"] < 0).all())
    is_extra = len(each.absent) > len(each.present)
    blamed: Sequence[int] = idle
    is_one_of, why = False, ""
    if not are_waiting or not {end.state for end in states.values()} <= HELD_UP:
        # Nothing shows that the missing ranks are held up: they may have skipped the call.
        is_tie = len(each.absent) == len(each.present)
        blamed, is_one_of = (
            (each.present, False)
            if is_extra
            else (idle, False)
            if not is_tie
            else ([*each.present, *each.absent], True)
            if len(each.present) == 1
            else ((), False)
        )
        if are_waiting and (is_extra or is_tie):
            blamed, is_one_of, why = _by_departures(frames, each, states, blamed, is_one_of)
    elif are_waiting:
        is_extra = False
        if waiting and waiting == set(idle):  # both sides wait for each other
            blamed, is_one_of = fewer_of(each.present, each.absent)
            if set(blamed) <= waiting and any(", " in states[rank].text for rank in blamed):
                # A rank that waits for keys of several ranks collects them: another set none.
                blamed, is_one_of = each.present, len(each.present) > 1
    kind = members["kind"].mode().iloc[0]
    named = call_text(kind, each.number, each.group, covered.names.get(each.group, ""))
    arrived, absentees = text_of_ranks(each.present), text_of_ranks(missing)
    made, missed = f"made by {arrived}", f"not by {absentees}"
    text = (
        f"Only {arrived} made {named}; {absentees} did not."
        if is_extra
        else f"{absentees} never arrived at {named}; {arrived} did."
    )
    return Problem(
        problem="extra call" if is_extra else "missing call",
        is_fault=True,
        group=each.group,
        mesh_axis=covered.axes.get(each.group, ""),
        number=each.number,
        ranks=numbers_text(blamed),
        is_one_of_ranks=is_one_of,
        expected=missed if is_extra else made,
        found=made if is_extra else missed,
        source=source_of(members.iloc[0]),
        explanation=text[0].upper() + text[1:] + _meanwhile(missing, inside, states) + why,
        at_ns=int(members["issue_ns"].min()),
    )


def _by_departures(
    frames: Frames,
    each: Absence,
    states: Mapping[int, End],
    blamed: Sequence[int],
    is_one_of: bool,
) -> tuple[Sequence[int], bool, str]:
    """Return the blamed ranks by their departures: ranks, `is_one_of`, and a sentence.

    The side with departures is blamed: the ranks that arrived if they are fewer, the missing ranks
    if they skipped a usual call. Unless exactly one side has departures, the ranks that arrived are
    blamed only if all missing ranks have ended; a rank that runs may still arrive.
    """
    found = departures(frames, [*each.present, *each.absent][:MOST_COMPARED])
    text = "".join(f" Rank {rank} {one.text()}." for rank, one in sorted(found.items())[:1])
    absent = [rank for rank in each.absent if rank in found]
    if len(absent) == 0 < len(found) and len(each.present) < len(each.absent):
        return each.present, False, text
    if len(absent) == len(found) > 0 and all(one.is_left_out for one in found.values()):
        return absent, False, text
    if all(end.state == ENDED for end in states.values()):
        return blamed, is_one_of, ""
    if len(each.present) == len(each.absent) == 1:
        return blamed, is_one_of, ""
    return (), False, " It is unknown whether this call is extra or the missing ranks are held up."


def _meanwhile(missing: Sequence[int], inside: Mapping[int, str], states: Mapping[int, End]) -> str:
    """Return a sentence on the states of the missing ranks."""
    doing: dict[str, list[int]] = {}
    for rank in missing:
        text = f"waits in {inside[rank]}" if rank in inside else ""
        if not text and rank in states and (states[rank].state != ENDED or states[rank].source):
            text = states[rank].sentence_part()
        if text:
            doing.setdefault(text, []).append(rank)
    parts = [
        f"{'each of ' if len(ranks) > 1 else ''}{text_of_ranks(ranks)} {text}"
        for text, ranks in doing.items()
    ]
    if not parts:
        return ""
    return f" Meanwhile {'; '.join(parts[:3])}{'; ...' if len(parts) > 3 else ''}."


def missing_ranks(frames: Frames, covered: Coverage) -> Iterator[Problem]:
    """Yield a problem for all members without a recording.

    The problem names the last call of the other members in a common group, unless that call is
    known to have ended: they may wait in it.
    """
    rows = covered.reached[covered.reached["rank"].isin(covered.unrecorded)]
    if rows.empty:
        return
    ranks = sorted(int(rank) for rank in rows["rank"].unique())
    num_ranks = rows.groupby("group")["rank"].nunique()
    shared = [str(each) for each in rows["group"].unique() if num_ranks[each] == len(ranks)]
    verb, noun = ("is", "this rank") if len(ranks) == 1 else ("are", "these ranks")
    groups = counted(len(num_ranks), "group")
    text = (
        f"{at_the_start(ranks)} left no recording, but {verb} in {groups} that communicated: the "
        f"calls of {noun} are unknown."
    )
    last = _last_call(frames, covered, shared)
    if last is not None:
        group, number = str(last["group"]), int(last["number"])
        named = call_text(str(last["kind"]), number, group, covered.names.get(group, ""))
        line = f" ({source_of(last)})" if source_of(last) else ""
        text += f" The other members may wait in {named}{line}: its end is unknown."
    yield Problem(
        problem="missing rank",
        is_fault=covered.imported_from not in OF_SOME_RANKS,
        group=shared[0] if shared else "",
        mesh_axis=covered.axes.get(shared[0], "") if shared else "",
        ranks=numbers_text(ranks if covered.imported_from not in OF_SOME_RANKS else ()),
        expected="a recording",
        found=f"none of {text_of_ranks(ranks)}",
        source="" if last is None else source_of(last),
        explanation=text,
        at_ns=-1 if last is None else int(last["issue_ns"]),
    )


def _last_call(frames: Frames, covered: Coverage, groups: Sequence[str]) -> pd.Series | None:
    """Return the latest of the groups' last calls; None if all of them are known to have ended."""
    reached = covered.reached
    is_recorded = ~reached["rank"].isin(covered.unrecorded) & (reached["last"] >= 0)
    last = reached[is_recorded & reached["group"].isin(groups)].groupby("group")["last"].max()
    if last.empty:
        return None
    calls = calls_of(frames, {(str(group), int(number)) for group, number in last.items()})
    ended = calls.loc[calls["complete_ns"] >= 0, "group"].unique()
    calls = calls[~calls["group"].isin(ended)]
    return None if calls.empty else calls.loc[calls["issue_ns"].idxmax()]


def losses(covered: Coverage, absent: list[Absence]) -> Iterator[Problem]:
    """Yield calls lost by the trace: gaps in a rank's numbers, or calls after its last.

    Ranks that have lost equally many calls for the same reason form a single problem.
    """
    if covered.has_timed_out_only or not covered.calling:  # it does not list all calls
        return
    reached = covered.reached
    made = (reached["last"] + 1 - covered.first_number).clip(lower=0)
    gaps = reached[made > reached["count"]]
    lacking = (made - reached["count"])[gaps.index].groupby(gaps["rank"]).sum()
    at_the_end = {rank for each in absent for rank in each.lost}
    at_the_end |= {rank for _, rank in covered.unsure}
    alike: dict[tuple[str, str], list[int]] = {}
    for rank in sorted(set(lacking.index) | at_the_end | set(covered.dropping)):
        # Numbers of operations that Inspector counts by function have gaps between them.
        num = 0 if covered.imported_from == INSPECTOR else int(lacking.get(rank, 0))
        reason = _why_lost(covered, rank, rank in at_the_end)
        # The segments of a ring end at other calls on each rank.
        in_ring = rank in covered.ring_truncated and not covered.imported_from
        found = counted(num, "call") if num and not in_ring else "calls"
        alike.setdefault((found, reason), []).append(rank)
    for (found, reason), ranks in alike.items():
        each = "each of " if len(ranks) > 1 else ""
        yield Problem(
            problem="lost calls",
            is_fault=False,
            ranks=numbers_text(ranks),
            found=found,
            explanation=f"The trace has lost {found} of {each}{text_of_ranks(ranks)}: {reason}. "
            "These were not checked, and no rank is blamed for them.",
        )


def _why_lost(covered: Coverage, rank: int, is_at_the_end: bool) -> str:
    if rank in covered.dropping:
        return "it exceeded the limits of the recording"
    if rank in covered.ring_truncated and not covered.imported_from:
        return _IN_RING
    if covered.is_sampled and not is_at_the_end:
        return "not every step was recorded"
    if covered.imported_from == PROFILER:
        return "the profiler covered a part of the run"
    if covered.imported_from == INSPECTOR:
        return "NCCL Inspector leaves out small messages, and those that its buffer could not hold"
    if rank in covered.partial:
        return "its dump does not list the calls that had ended"
    if covered.imported_from and is_at_the_end and rank not in covered.ring_truncated:
        return "its dump was written before the other ranks wrote theirs"
    if rank in covered.truncated and not covered.imported_from:
        return "its recording was truncated"
    if covered.imported_from and rank not in covered.ring_truncated:
        return _NOT_ENTERED
    return _IN_RING


_IN_RING = "its ring buffer holds only the latest calls"
_NOT_ENTERED = (
    "its flight recorder was reset, or did not enter them, such as gloo's monitored barriers and "
    "NCCL's calls in CUDA graphs"
)


def not_compared(covered: Coverage) -> Iterator[Problem]:
    """Yield the collectives of unknown number, which cannot be matched across ranks."""
    if not covered.unnumbered:
        return
    num = sum(covered.unnumbered.values())
    yield Problem(
        problem=NOT_COMPARED,
        is_fault=False,
        ranks=numbers_text(covered.unnumbered),
        found=f"{num} collectives",
        explanation=f"{num} collectives of {text_of_ranks(set(covered.unnumbered))} have no number "
        "within their group, or an unknown group: they could not be compared across ranks.",
    )
