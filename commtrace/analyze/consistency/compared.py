"""Extent of the consistency check: the calls that were compared, and the reasons for the others.

A call is *compared* if the trace has the calls of its peers, or shows that a peer did not make it.
A call in a group of a single rank has no peers to disagree with. The result of the check refers to
the compared calls only, so the result and the extent are always shown together.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.consistency.absences import absences
from commtrace.analyze.consistency.coverage import PROFILER, Coverage, coverage
from commtrace.analyze.consistency.disagreements import first_disagreements
from commtrace.analyze.consistency.numbered import numbered
from commtrace.analyze.consistency.transfers import comparable_ends
from commtrace.analyze.measures.arrivals import NO_RANK
from commtrace.analyze.run.cached_per_run import of_run
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.known import is_fake_world
from commtrace.analyze.run.matching import (
    Arrays,
    across_ranks,
    is_transfer,
    matches,
    partners,
)
from commtrace.collective_table import EVERY_RANK_AT_ROOT, KINDS, ROOT, needing
from commtrace.schema import STREAM
from commtrace.units import counted, known_note

COMPARED, ALONE = "", "in a group of a single rank"
UNNUMBERED = "without a number in the group"
AFTER_LOSSES = "after calls that the trace has lost"
UNRECORDED = "in a group whose other ranks left no recording"
OF_FAKE = "in a group of a fake world, which has a single rank"
LOST = "in a group whose other ranks' calls the trace has lost"
DISAGREED = "after the first disagreement in the group"
AGREEING = "matched only because the ranks agree in number, kind, size and order of calls"
NO_OTHER_END = "to or from a rank whose calls are unknown or may be lost"
_STATUSES = (
    *(COMPARED, ALONE, UNNUMBERED, AFTER_LOSSES, UNRECORDED, OF_FAKE, LOST, DISAGREED, AGREEING),
    NO_OTHER_END,
)
_CODES = {status: code for code, status in enumerate(_STATUSES)}

_DATA = tuple(kind for kind in KINDS if kind != "barrier")
PROPERTIES: Mapping[str, tuple[str, Collection[str]]] = {
    "reduction": ("reduce_op", ("all_reduce", "reduce_scatter", "reduce")),
    "root": ("root", (*needing(ROOT), *needing(EVERY_RANK_AT_ROOT))),
    "type": ("dtype", _DATA),
    "size": ("payload_bytes", _DATA),
}
"""By compared property other than the kind, its column and the kinds of calls that have it."""

GOOD, BAD, NEUTRAL = "good", "bad", ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Extent of the check of a run.

    Attributes:
        num_calls: Number of calls in the trace.
        num_compared: Number of calls that were compared.
        num_alone: Number of calls of groups of one rank.
        num_collectives: Number of compared collectives, in the part of their first rank.
        num_transfers: Number of compared sends and recvs.
        not_compared: By reason, the number of calls that have peers but were not compared.
        unknown: Texts of properties that compared collectives lack; an unknown value agrees with
            every other value.
    """

    num_calls: int
    num_compared: int
    num_alone: int
    num_collectives: int
    num_transfers: int
    not_compared: Mapping[str, int]
    unknown: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """True if every call that has peers was compared."""
        return not self.not_compared

    def lines(self) -> list[str]:
        """Return the extent in words: the compared calls, and the others by reason."""
        parts = [
            counted(num, noun)
            for num, noun in (
                (self.num_collectives, "collective"),
                (self.num_transfers, "point-to-point call"),
            )
            if num
        ]
        others = [f"not compared: {counted(num, 'call')} {why}" for why, num in self.reasons()]
        lacks = f"; unknown: {', '.join(self.unknown)}" if self.unknown else ""
        return [*([f"compared: {' and '.join(parts)}{lacks}"] if parts else []), *others]

    def reasons(self) -> list[tuple[str, int]]:
        """Return the reasons for which calls were not compared, the most frequent first."""
        return sorted(self.not_compared.items(), key=lambda item: (-item[1], item[0]))


@of_run
def compared(frames: Frames) -> Comparison:
    """Return the extent of the check of a run."""
    covered = coverage(frames)
    # From this number on, the calls missing from the trace are a problem of the table.
    missed = {
        each.group: each.number for each in absences(frames) if set(each.absent) - set(each.lost)
    }
    differing = first_disagreements(frames)
    of_parts = frames.by_ranks(_of_part, covered, missed, differing)
    counts = sum((part.counts for part in of_parts), Counter[str]())
    return Comparison(
        num_calls=counts.total(),
        num_compared=counts.pop(COMPARED, 0),
        num_alone=counts.pop(ALONE, 0),
        num_collectives=sum(part.num_collectives for part in of_parts),
        num_transfers=sum(part.num_transfers for part in of_parts),
        not_compared=dict(counts),
        unknown=tuple(_unknown([part.num_known for part in of_parts])),
    )


@dataclass(frozen=True, slots=True)
class _Compared:
    """Numbers of calls of a part.

    Attributes:
        counts: Number of calls by status: `COMPARED`, or the reason why not.
        num_collectives: Number of compared collectives, in the part of their first rank.
        num_transfers: Number of compared sends and recvs.
        num_known: By property, the number of compared collectives with a known value, and the
            number of compared collectives that have the property.
    """

    counts: Counter[str]
    num_collectives: int
    num_transfers: int
    num_known: dict[str, tuple[int, int]]


def _of_part(
    frames: Frames, covered: Coverage, missed: Mapping[str, int], differing: Mapping[str, int]
) -> _Compared:
    status = _of_transfers(frames, covered)
    collectives = _of_collectives(frames, covered, missed, differing)
    status[collectives.index] = collectives
    is_compared = status == _CODES[COMPARED]
    counts = np.bincount(status, minlength=len(_STATUSES)).tolist()
    calls = numbered(frames)
    calls = calls[is_compared[calls.index]]
    return _Compared(
        counts=Counter({each: num for each, num in zip(_STATUSES, counts, strict=True) if num}),
        num_collectives=int(_is_first(frames, calls).sum()),
        num_transfers=int((is_compared & is_transfer(frames)).sum()),
        num_known={name: _num_known(calls, *each) for name, each in PROPERTIES.items()},
    )


def _num_known(calls: pd.DataFrame, column: str, kinds: Collection[str]) -> tuple[int, int]:
    values = calls.loc[calls["kind"].isin(kinds), column]
    is_known = values != "" if column in ("reduce_op", "dtype") else values >= 0
    return int(is_known.sum()), len(values)


def _unknown(counts: Sequence[Mapping[str, tuple[int, int]]]) -> Iterator[str]:
    """Yield the properties that some calls of kinds that have them lack, in words."""
    for name in PROPERTIES:
        num_known, num = (sum(each) for each in zip(*(part[name] for part in counts), strict=True))
        if note := known_note(num_known, num):
            yield f"{name} ({note})" if num_known else name


def _of_transfers(frames: Frames, covered: Coverage) -> pd.Series:
    """Return the code of the status of transfers, by row of table `comm`.

    Collectives are unnumbered, or after losses.
    """
    comm, transfer = frames.comm, is_transfer(frames)
    no_end, unnumbered, after = (_CODES[each] for each in (NO_OTHER_END, UNNUMBERED, AFTER_LOSSES))
    unknown = np.where(transfer, no_end, np.where(comm["seq"] < 0, unnumbered, after))
    status = pd.Series(unknown, index=comm.index)
    # An importer may lack the other end, although there was one.
    has_partner = partners(frames) >= 0 if covered.imported_from else transfer
    if transfer.any():
        ends = comparable_ends(comm[transfer], covered)["row"]
        ends = ends[has_partner[ends].to_numpy()]
        status[ends] = _CODES[COMPARED]
    return status


def _of_collectives(
    frames: Frames, covered: Coverage, missed: Mapping[str, int], differing: Mapping[str, int]
) -> pd.Series:
    """Return the code of the status of the collectives with a number in their group.

    Args:
        frames: Calls of some ranks.
        covered: How far the calls of the run can be compared.
        missed: By group, the number from which on calls are missing.
        differing: By group, the number of the first call in which its members disagree.
    """
    calls = numbered(frames)
    group, number = calls["group"].cat, calls["number"].to_numpy()

    def by_group(values: Mapping[Any, float], other: float) -> np.ndarray:
        """Return a value for each call, looked up once for each group."""
        of_groups = [values.get(each, other) for each in group.categories]
        return np.asarray(of_groups, dtype="float64")[group.codes]

    sizes = dict(zip(frames.groups["name"], frames.groups["size"], strict=True))
    of_one = OF_FAKE if is_fake_world(frames) else UNRECORDED
    members = covered.reached[~covered.reached["rank"].isin(covered.unrecorded)]
    num_recorded = by_group(members.groupby("group").size().to_dict(), 0)
    is_stream = by_group({each: each.startswith(STREAM) for each in group.categories}, 0) > 0
    is_inferred = (covered.imported_from == PROFILER) & is_stream
    present = _recorded(frames)["num_ranks"][matches(frames)[calls.index]]
    is_missed = number >= by_group(missed, math.inf)
    conditions = [
        (by_group(sizes, math.nan) == 1, ALONE),
        (number > by_group(differing, math.inf), DISAGREED),
        (is_inferred & (present > 1), AGREEING),
        ((present > 1) | is_missed, COMPARED),
        (num_recorded <= 1, of_one),
    ]
    masks, statuses = zip(*conditions, strict=True)
    found = np.select(masks, [_CODES[each] for each in statuses], default=_CODES[LOST])
    return pd.Series(found, index=calls.index)


@across_ranks(num_ranks=(0, "int64"), lowest=(NO_RANK, "int64"))
def _recorded(part: Frames, into: Arrays) -> None:
    """Number of ranks that made each collective, and the lowest of them."""
    calls = pd.DataFrame({"match": matches(part), "rank": part.comm["rank"]})
    calls = calls.loc[numbered(part).index].drop_duplicates()
    np.add.at(into["num_ranks"], calls["match"], 1)
    np.minimum.at(into["lowest"], calls["match"], calls["rank"])


def _is_first(frames: Frames, calls: pd.DataFrame) -> pd.Series:
    """Return a mask of calls with one call of each collective: a call of its lowest rank."""
    at = matches(frames)[calls.index]
    is_lowest = calls["rank"] == _recorded(frames)["lowest"][at]
    return is_lowest & ~at[is_lowest].duplicated().reindex(calls.index, fill_value=False)


def result_of(frames: Frames, comparison: Comparison, num_faults: int) -> tuple[str, str]:
    """Return the result of the check in a clause, with its mood: `GOOD`, `BAD` or `NEUTRAL`.

    Without any compared call there is no result: the clause then says that nothing was compared.
    """
    num_communicators = frames.communicators["group"].nunique()
    subject = f"{counted(comparison.num_calls, 'call')} of {counted(frames.num_ranks, 'rank')}"
    if num_communicators and not comparison.num_calls:
        ranks = counted(frames.num_ranks, "rank")
        subject = f"the counts of {counted(num_communicators, 'communicator')} of {ranks}"
        if not num_faults:
            return f"no fault in {subject}", NEUTRAL
    if num_faults:
        return f"{counted(num_faults, 'fault')} in {subject}", BAD
    if not comparison.num_compared:
        return f"not compared: {_why_nothing(frames, comparison)}", NEUTRAL
    if comparison.is_complete:
        return f"no fault in {subject}", GOOD
    part = f"{comparison.num_compared:,} of {counted(comparison.num_calls, 'call')}"
    return f"no fault among the {part} that could be compared", NEUTRAL


def _why_nothing(frames: Frames, comparison: Comparison) -> str:
    world_size = max(int(frames.run.get("world_size", 1)), frames.num_ranks)
    num_calling = len(coverage(frames).calling)
    if not comparison.num_calls:
        return "there is no call"
    if world_size == 1:
        return "a single rank has no peers"
    if is_fake_world(frames):
        return "a fake world has a single rank"
    if num_calling == 1:
        return f"the calls of 1 of {world_size:,} ranks only"
    if comparison.is_complete:
        return f"{counted(comparison.num_alone, 'call')}, each {ALONE}"
    return f"{counted(comparison.num_calls, 'call')} of {counted(num_calling, 'rank')}"
