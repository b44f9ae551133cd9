"""The table `divergences`: for each fault of the consistency check, the divergence before it.

A hang shows the call in which ranks wait. Its cause is earlier: after the last common call, one
rank took another branch, left a loop, raised an exception, or made no further call.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from typing import Any

import pandas as pd

from commtrace.analyze.consistency.check import consistency
from commtrace.analyze.consistency.coverage import coverage
from commtrace.analyze.consistency.creation import inside_creation
from commtrace.analyze.consistency.departures import Departure, departures
from commtrace.analyze.consistency.numbered import calls_of_ranks
from commtrace.analyze.consistency.problem import DIFFERENT, ranks_in
from commtrace.analyze.consistency.waiting import hanging_calls
from commtrace.analyze.divergence.creating import NO_GROUP, calls_with_creations, first_unlike
from commtrace.analyze.divergence.description import DivergenceWords, RankDivergence
from commtrace.analyze.divergence.earlier import made_alike
from commtrace.analyze.divergence.sequences import Parting, parting
from commtrace.analyze.divergence.sides import labels_of, sides_of, sides_of_cycle
from commtrace.analyze.divergence.verdict import verdict_of
from commtrace.analyze.run.analysis import Analysis, typed
from commtrace.analyze.run.cached_per_run import of_run
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import members as members_of
from commtrace.analyze.run.program_folder import program_folder, relative_to
from commtrace.schema import INSTANT, Column
from commtrace.units import text_of_ranks

COLUMNS = (
    Column("problem", str, "", "the fault, as in table `consistency`"),
    Column("group", str, "", "name of its process group"),
    Column("mesh_axis", str, "", "axis of the DeviceMesh that owns it", title="Axis"),
    Column("number", int, "", "number of the collective in the group, from 0"),
    Column("ranks", str, "", "ranks that left the common order, `1,3`", form="ranks"),
    Column("others", str, "", "the other ranks of the group", form="ranks"),
    Column("compared", str, "", "the rank of each side whose calls are compared", form="ranks"),
    Column("before", str, "", "whether the calls that a ring has replaced were made alike"),
    Column("common", str, "", "last call that both made alike"),
    Column("common_source", str, "", "source line of it"),
    Column("own", str, "", "next call of these ranks; empty if they made none"),
    Column("own_source", str, "", "source line of it"),
    Column("instead", str, "", "next call of the others; empty if they made none"),
    Column("instead_source", str, "", "source line of it"),
    Column("branch", str, "", "statements in the source by which they parted"),
    Column("event", str, "", "event that only one of the ranks had since the last common call"),
    Column("event_rank", int, "", "rank of the event; -1 without one"),
    Column("explanation", str, "", "the row in sentences"),
    Column("verdict", str, "", "the rank, its line and the cause, and where others wait"),
    Column("at_ns", int, INSTANT, "when the last common call was issued; -1 unknown"),
)

_GROUP_ORDER = "group order"
_DEADLOCK = "deadlock"
_OF_CYCLES = (_DEADLOCK, _GROUP_ORDER, "tag")
_MISSING = "missing call"
_ABSENT = (_MISSING, "extra call", *_OF_CYCLES)
_WITHOUT_WAITS = ("reduce_op", "replicas differ", "wrong reduction", "race")
"""Faults after which ranks go on, as their calls end."""
_MOST_FAULTS = 50
"""Number of the earliest faults that are traced back; later faults mostly follow from them."""
_UNKNOWN = -1


@of_run
def divergences(frames: Frames) -> pd.DataFrame:
    """Return a row per fault that can be traced back, the earliest parting first."""
    problems = consistency(frames)
    faults = problems[problems["problem"].isin([*_ABSENT, *DIFFERENT]) & problems["is_fault"]]
    # The log of a watchdog lists only calls that timed out.
    if faults.empty or coverage(frames).has_timed_out_only:
        return typed(pd.DataFrame(), COLUMNS)
    hanging = hanging_calls(frames)
    found: list[RankDivergence] = []
    for fault in faults.head(_MOST_FAULTS).to_dict("records"):
        found += _divergences(frames, {str(name): each for name, each in fault.items()}, hanging)
    found.sort(key=lambda each: (each.at_ns < 0, each.at_ns, astuple(each)))
    folder = program_folder(frames)
    rows = [
        [relative_to(folder, value) if isinstance(value, str) else value for value in astuple(each)]
        for each in found
    ]
    return typed(pd.DataFrame(rows, columns=[column.name for column in COLUMNS]), COLUMNS)


def _divergences(
    frames: Frames, fault: dict[str, object], hanging: pd.DataFrame
) -> Iterator[RankDivergence]:
    """Yield the divergence of each side of a fault."""
    group, number = str(fault["group"]), int(str(fault["number"]))
    recorded = set(frames.ranks["rank"].tolist())
    everyone = members_of(frames)
    members = sorted(recorded & set(everyone.loc[everyone["group"] == group, "rank"]))
    involved = [rank for rank in ranks_in(str(fault["ranks"])) if rank in recorded]
    blamed = [] if fault["is_one_of_ranks"] else involved
    is_of_creation = group == NO_GROUP and fault["problem"] == _GROUP_ORDER
    if (fault["problem"] in _OF_CYCLES or number < 0) and not is_of_creation:
        # Of a collective that all make, the other ranks show more.
        left = {
            rank: each
            for rank, each in departures(frames, involved).items()
            if each.is_altered or each.usual["is_transfer"] or each.made["is_transfer"]
        }
        leaving = blamed or ([*left] if len(left) == 1 else [])
        if leaving and set(leaving) <= left.keys():
            yield from (_of_rounds(frames, fault, left[rank]) for rank in leaving)
            return
    inside = set(inside_creation(frames))
    if group == NO_GROUP:
        is_of_creation = is_of_creation or fault["problem"] == _MISSING
    elif fault["problem"] == _DEADLOCK and blamed:
        is_of_creation = bool(inside - set(blamed))  # in which the others wait for the blamed ranks
    if is_of_creation:
        yield from _of_creations(frames, fault, sorted(recorded), involved, blamed)
        return
    if number < 0 or not members:
        return
    if fault["problem"] in _OF_CYCLES and not blamed:
        sides = sides_of_cycle(hanging, involved)
    else:
        sides = sides_of(frames, fault, members, blamed)
    # Compare ranks that do not wait, and not the first member, which is often the root.
    waiting = set(hanging["rank"])
    for own_ranks, other_ranks in sides:
        own = sorted(own_ranks, key=lambda rank: (rank in waiting, rank))
        others = sorted(other_ranks, key=lambda rank: (rank == members[0], rank))
        found = _described(frames, fault, own, others, may_be_either=not blamed)
        if found is not None:
            yield found


def _of_creations(
    frames: Frames,
    fault: dict[str, object],
    recorded: Sequence[int],
    involved: Sequence[int],
    blamed: Sequence[int],
) -> Iterator[RankDivergence]:
    """Yield where ranks parted that create groups differently, or wait for others in a creation."""
    own = blamed or involved[:1]
    others = [rank for rank in (recorded if blamed else involved) if rank not in own]
    if not (own and others):
        return
    ranks = own[0], others[-1]
    calls = calls_with_creations(frames, ranks)
    labels = {**labels_of(frames, *ranks), NO_GROUP: NO_GROUP}
    parted = parting(calls, *ranks, NO_GROUP, first_unlike(frames, *ranks), labels)
    others = [ranks[1], *others[:-1]]
    yield DivergenceWords(frames, fault, own, others, calls, parted).row(may_be_either=not blamed)


def _of_rounds(frames: Frames, fault: dict[str, object], left: Departure) -> RankDivergence:
    """Return the divergence of a rank from its own earlier rounds."""
    calls = calls_of_ranks(frames, [left.rank])
    parted = Parting((left.before, left.before), left.made, left.usual, left.since_ns)
    own = [left.rank]
    description = DivergenceWords(
        frames, fault, own, own, calls, parted, num_rounds=left.num_rounds
    )
    return description.row(may_be_either=False)


def _described(
    frames: Frames,
    fault: dict[str, object],
    own: Sequence[int],
    others: Sequence[int],
    *,
    may_be_either: bool,
) -> RankDivergence | None:
    """Return where the first rank of one side parted from the first rank of the other."""
    group, ranks = str(fault["group"]), (own[0], others[0])
    calls = calls_of_ranks(frames, ranks)
    if calls.empty:
        return None
    number = int(str(fault["number"]))
    parted = parting(calls, *ranks, group, number, labels_of(frames, *ranks))
    alike = made_alike(frames, calls, ranks, group)
    description = DivergenceWords(frames, fault, own, others, calls, parted, alike)
    return description.row(may_be_either=may_be_either)


def of_fault(parted: pd.DataFrame, fault: Mapping[Any, Any]) -> list[dict[str, Any]]:
    """Return the rows of table `divergences` about a row of table `consistency`.

    Faults of transfers have no number; those about the fault's ranks come first.
    """
    is_of_fault = (parted[_IDENTITY] == [fault[name] for name in _IDENTITY]).all(axis=1)
    rows = parted[is_of_fault].to_dict("records")
    if fault["number"] < 0:
        ranks = {*str(fault["ranks"]).split(",")}
        rows.sort(key=lambda row: ranks.isdisjoint(str(row["ranks"]).split(",")))
    return [{str(name): value for name, value in row.items()} for row in rows]


_IDENTITY = ["problem", "group", "number"]


def first_verdict(problems: pd.DataFrame, parted: pd.DataFrame | None = None) -> str:
    """Return the verdict on the first fault of a run; empty without a fault.

    If ranks go on after that fault, the verdict on the first fault in which they wait is added.

    Args:
        problems: Table `consistency`.
        parted: Table `divergences`.
    """
    faults = problems[problems["is_fault"]].to_dict("records")
    waits = next((each for each in faults if each["problem"] not in _WITHOUT_WAITS), None)
    told = [*faults[:1], *([waits] if waits is not None and waits is not faults[0] else [])]
    verdicts = []
    for fault in told:
        rows = [] if parted is None else of_fault(parted, fault)
        named = {str(name): each for name, each in fault.items()}
        verdicts.append(verdict_of(named, next(iter(rows), None)))
    return "; later, ".join(
        verdicts[:1] + [f"{each[:1].lower()}{each[1:]}" for each in verdicts[1:]]
    )


def lines_of(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines of a row, each with its title."""
    own, others = (text_of_ranks([rank]) for rank in ranks_in(row["compared"]))
    if own == others:  # a rank that left the order of its own rounds
        others = "in rounds before"
    if not row["own"] and not row["instead"]:
        return [("parted", str(row["explanation"]))]
    places = [
        ("before", row["before"], ""),
        ("last alike", row["common"], row["common_source"]),
        (own, row["own"] or "no further call", row["own_source"]),
        (others, row["instead"] or "no further call", row["instead_source"]),
        ("parted at", row["branch"], ""),
        (text_of_ranks([row["event_rank"]]), row["event"], ""),
    ]
    return [(name, f"{text}, {at}" if at else str(text)) for name, text, at in places if text]


DIVERGENCES = Analysis(
    "divergences",
    "Divergences",
    "Where did the ranks diverge before a fault?",
    divergences,
    COLUMNS,
)
