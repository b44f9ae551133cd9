"""Groups of calls whose trace states only their stream.

Traces of 2023 and before state no groups. The kernels of a collective end on all members at once,
but not on the members of another group. Ranks are therefore in the same group if their calls on
a stream agree in number, kind, size and order, and end together:

    rank 0   |--all_reduce--|       |all_gather|            stream 20: ranks 0 and 1
    rank 1      |all_reduce-|     |-all_gather-|
    rank 2   |---all_reduce----|        |all_gather|        stream 20: ranks 2 and 3
    rank 3       |-all_reduce--|     |--all_gather-|

If they do not agree, the calls keep the name of the stream, but its ranks stay unknown. Used by
`kineto.importer`, before the calls are numbered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

from commtrace.importers.rank_record import RankRecord, group_row
from commtrace.schema import STREAM
from commtrace.torch_names import NOT_KNOWN

_SAME_SIZE = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"})
_END_TOGETHER = frozenset({"all_reduce", "all_gather", "reduce_scatter", "barrier"})
_SKEW_NS = 50_000
"""Most time by which the clocks of the devices of a host differ, generously."""
_PART_OF_TRANSFER = 10
"""Ends of a collective may differ by this part of the shortest of its kernels."""
_EXCEPTIONS = 10
"""Calls that do not end together may be this part of a group's calls."""
_MOST_COMPARED = 200

_Calls = Sequence[Any]


def stream_groups(records: Sequence[RankRecord], world_size: int) -> list[str]:
    """Give calls of an unknown group the ranks that communicate on its stream, if they are plain.

    Returns:
        Sentences on the streams whose ranks are, and are not, known now.
    """
    streams: dict[str, list[list[Any]]] = {}
    for place, record in enumerate(records):
        for call in record.comm:
            if call.group.startswith(STREAM):
                streams.setdefault(call.group, [[] for _ in records])[place].append(call)
    said = []
    for name, calls in streams.items():
        groups, sentence = _groups(name, records, calls, world_size)
        said.append(sentence)
        for ranks in groups:
            for place in ranks:
                members = [records[each].rank for each in ranks]
                records[place].groups[name] = group_row(name, "", members, records[place].backend)
        for record in records:
            if name not in record.groups:
                row = group_row(name, "", (), record.backend)
                record.groups[name] = row._replace(size=NOT_KNOWN)
    return said


def _groups(
    name: str, records: Sequence[RankRecord], calls: Sequence[_Calls], world_size: int
) -> tuple[list[list[int]], str]:
    """Return the places of the ranks of each group, and a sentence on them."""
    share_a_clock = len({record.host for record in records}) == 1
    clusters = _clusters(calls, share_a_clock)
    why = _misfit(calls, world_size, share_a_clock)
    if len(clusters) > 1 and _are_apart(clusters, calls, is_named=bool(records[0].host)):
        misfits = [_misfit([calls[n] for n in each], len(each), True) for each in clusters]
        why = next(filter(None, misfits), "")
    elif not why and len(clusters) > 1:
        why = "they end at different times on different ranks"
    if why:
        sentence = f"the groups of the calls on {name}: not taken for a single group, since {why}"
        return [], sentence
    if len(clusters) == 1:
        compared = share_a_clock and all(call.complete_ns >= 0 for each in calls for call in each)
        times = ", and overlap in time" if compared else ""
        return clusters, (
            f"the group of the calls on {name}: taken for all ranks, whose calls agree in number, "
            f"kind, size and order{times}"
        )
    ranks = [",".join(str(records[n].rank) for n in each) for each in clusters]
    listed = "; ".join(ranks) if len(ranks) <= 4 else f"{'; '.join(ranks[:3])}; ..."
    return clusters, (
        f"the groups of the calls on {name}: taken for {len(clusters)} groups of ranks ({listed}), "
        "whose calls agree in number, kind, size and order, and end together"
    )


def _misfit(calls: Sequence[_Calls], num_ranks: int, share_a_clock: bool) -> str:
    """Return why the calls of a stream do not belong to a group of all ranks, or nothing."""
    missing = num_ranks - len([each for each in calls if each])
    if missing:
        return f"{missing} of {num_ranks} ranks have none"
    if len({len(each) for each in calls}) > 1:
        return "their numbers differ between ranks"
    for number, together in enumerate(zip(*calls, strict=True)):
        kinds = {call.kind for call in together}
        if len(kinds) > 1:
            return f"call {number} is {' or '.join(sorted(kinds))}, depending on the rank"
        sizes = {call.payload_bytes for call in together if call.payload_bytes >= 0}
        if kinds <= _SAME_SIZE and len(sizes) > 1:
            return f"the sizes of call {number} differ between ranks"
        ends = [call.complete_ns for call in together]
        last_begin = max(call.issue_ns for call in together)
        if share_a_clock and min(ends) >= 0 and last_begin > min(ends) + _SKEW_NS:
            return f"call {number} ends on one rank before another rank begins it"
    return ""


def _clusters(calls: Sequence[_Calls], share_a_clock: bool) -> list[list[int]]:
    """Return the places of ranks whose calls have the same kinds and end together."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for place, each in enumerate(calls):
        alike.setdefault(tuple(call.kind for call in each), []).append(place)
    clusters: list[list[int]] = []
    for places in alike.values():
        found: list[list[int]] = []
        for place in places:
            homes = (
                home for home in found
                if not share_a_clock or _end_together(calls[home[0]], calls[place])
            )  # fmt: skip
            home = next(homes, None)
            if home is None:
                found.append([place])
            else:
                home.append(place)
        clusters += found
    return clusters


def _end_together(one: _Calls, other: _Calls) -> bool:
    """Return whether the calls of two ranks end together, as far as that can be compared."""
    compared = list(_compared(one, other))
    apart = sum(abs(a.complete_ns - b.complete_ns) > _tolerance(a, b) for a, b in compared)
    return apart * _EXCEPTIONS <= len(compared)


def _compared(one: _Calls, other: _Calls) -> Iterator[tuple[Any, Any]]:
    """Yield pairs of calls that end together if they are the same; of many, only some."""
    every = max(1, len(one) // _MOST_COMPARED)
    for a, b in zip(one[::every], other[::every], strict=True):
        if a.kind in _END_TOGETHER and min(a.complete_ns, b.complete_ns) >= 0:
            yield a, b


def _tolerance(*calls: Any) -> int:
    shortest = min(call.complete_ns - call.issue_ns for call in calls)
    return max(_SKEW_NS, shortest // _PART_OF_TRANSFER)


def _are_apart(clusters: list[list[int]], calls: Sequence[_Calls], *, is_named: bool) -> bool:
    """Return whether the times show that clusters of ranks are groups.

    Each must have members that end together. If the host has no name, clusters might be hosts whose
    clocks differ, which would differ by as much at each call.
    """
    if any(len(each) < 2 for each in clusters):
        return False
    if not all(any(_compared(calls[each[0]], calls[each[1]])) for each in clusters):
        return False
    return is_named or all(
        _are_of_one_clock(calls[one[0]], calls[other[0]])
        for one, other in combinations(clusters, 2)
        if _kinds(calls[one[0]]) == _kinds(calls[other[0]])
    )


def _are_of_one_clock(one: _Calls, other: _Calls) -> bool:
    offsets = [a.complete_ns - b.complete_ns for a, b in _compared(one, other)]
    return bool(offsets) and max(offsets) - min(offsets) > _SKEW_NS


def _kinds(calls: _Calls) -> list[str]:
    return [call.kind for call in calls]
