"""Calls of several ranks that belong together, where the files do not say so.

The ranks of a group may be missing, the numbers of its calls, or the group itself. Each is inferred
only where the calls of all ranks agree on it, and reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from commtrace.importers.names import NOT_KNOWN, TRANSFERS, payload_of, wire_of
from commtrace.importers.recorded import RankRecord, group_row, members_of

STREAM = "stream "
"""Beginning of the name that the calls of a stream have as a group, if their group is unknown."""

_OfRanks = Sequence[Sequence[Any]]
"""Calls, rank by rank."""

_SAME_SIZE = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"})
_SKEW_NS = 50_000
"""Most time by which the clocks of the devices of one host differ, generously."""


def stream_groups(records: Sequence[RankRecord], world_size: int) -> list[str]:
    """Give calls of an unknown group one of all ranks, if the calls of a stream fit on all of them.

    They fit if every rank of the run has as many, of the same kinds and sizes, in the same order,
    and if no kernel begins after that of another rank has ended, as far as the ranks share a clock.

    Returns:
        Sentences on the streams that fit, and on those that do not.
    """
    streams: dict[str, list[list[Any]]] = {}
    for place, record in enumerate(records):
        for call in record.comm:
            if call.group.startswith(STREAM):
                of_ranks = streams.setdefault(call.group, [[] for _ in records])
                of_ranks[place].append(call)
    said: list[str] = []
    for name, calls in streams.items():
        why = _misfit(records, calls, world_size)
        ranks = [record.rank for record in records] if not why else []
        for record in records:
            row = group_row(name, "", ranks, record.backend)
            record.groups[name] = row._replace(size=world_size if ranks else NOT_KNOWN)
        overlap = ", and overlap in time" if _are_compared(records, calls) else ""
        said.append(
            f"the groups of the calls on {name}: not taken for one group, since {why}"
            if why
            else f"the group of the calls on {name}: taken for all ranks, whose calls agree in "
            f"number, kind, size and order{overlap}"
        )
    return said


def _misfit(records: Sequence[RankRecord], calls: _OfRanks, world_size: int) -> str:
    """Return why the calls of a stream are not those of one group of all ranks, or nothing."""
    missing = world_size - len([each for each in calls if each])
    if missing:
        return f"{missing} of {world_size} ranks have none"
    if len({len(each) for each in calls}) > 1:
        return "their numbers differ between ranks"
    for number, together in enumerate(zip(*calls, strict=True)):
        kinds = {call.kind for call in together}
        if len(kinds) > 1:
            return f"call {number} is {' or '.join(sorted(kinds))}, depending on the rank"
        sizes = {call.payload_bytes for call in together if call.payload_bytes >= 0}
        if kinds <= _SAME_SIZE and len(sizes) > 1:
            return f"the sizes of call {number} differ between ranks"
        if _share_a_clock(records) and _are_timed(together):
            last_begin = max(call.issue_ns for call in together)
            if last_begin > min(call.complete_ns for call in together) + _SKEW_NS:
                return f"call {number} ends on one rank before another one begins it"
    return ""


def _share_a_clock(records: Sequence[RankRecord]) -> bool:
    return len({record.host for record in records}) == 1


def _are_timed(calls: Iterable[Any]) -> bool:
    return all(call.complete_ns >= 0 for call in calls)


def _are_compared(records: Sequence[RankRecord], calls: _OfRanks) -> bool:
    """Return whether `_misfit` could compare the times of all calls."""
    return _share_a_clock(records) and all(map(_are_timed, calls))


def with_sizes(records: Sequence[RankRecord]) -> None:
    """Set payloads and wire bytes that were unknown only because the group's ranks were."""
    for record in records:
        for place, call in enumerate(record.comm):
            row = record.groups.get(call.group)
            if call.wire_bytes >= 0 or row is None or not row.ranks:
                continue
            ranks = members_of(row)
            payload = call.payload_bytes
            if payload < 0 and call.id in record.messages:
                payload = payload_of(call.kind, *record.messages[call.id], len(ranks))
            wire = wire_of(call.kind, payload, ranks, record.rank, call.root)
            record.comm[place] = call._replace(payload_bytes=payload, wire_bytes=wire)


def infer_members(records: Sequence[RankRecord], world_size: int) -> list[str]:
    """Infer the ranks of groups that no file lists; return those groups' names, to be reported.

    The default group has all ranks. Other groups have the ranks whose calls on them were recorded.
    """
    known: dict[str, Any] = {}
    callers: dict[str, set[int]] = {}
    for record in records:
        for row in record.groups.values():
            if row.ranks or row.name not in known:
                known[row.name] = row
        for name in {call.group for call in record.comm}:
            callers.setdefault(name, set()).add(record.rank)
    inferred = {}
    for name, row in known.items():
        if not row.ranks and not name.startswith(STREAM):
            is_default = row.description == "default_pg"
            ranks = range(world_size) if is_default else sorted(callers.get(name, ()))
            inferred[name] = row._replace(ranks=",".join(map(str, ranks)), size=len(ranks) or -1)
    for record in records:
        for name, row in record.groups.items():
            if not row.ranks:
                record.groups[name] = inferred.get(name, known[name])
    return [name for name in inferred if known[name].description != "default_pg"]


def number_by_order(records: Sequence[RankRecord]) -> tuple[int, int]:
    """Number the collectives without numbers; return how many were and how many were not numbered.

    A group's calls are numbered in order if each member made as many calls of the same kinds: that
    they belong together is then more than a guess.
    """
    unnumbered: dict[str, dict[int, list[int]]] = {}
    for place, record in enumerate(records):
        for row, call in enumerate(record.comm):
            if call.seq < 0 and call.kind not in TRANSFERS:
                unnumbered.setdefault(call.group, {}).setdefault(place, []).append(row)
    numbered = left = 0
    for group, rows in unnumbered.items():
        if _fits(records, group, rows):
            for place, of_rank in rows.items():
                calls = records[place].comm
                for seq, row in enumerate(of_rank):
                    calls[row] = calls[row]._replace(seq=seq)
            numbered += sum(map(len, rows.values()))
        else:
            left += sum(map(len, rows.values()))
    return numbered, left


def _fits(records: Sequence[RankRecord], group: str, rows: Mapping[int, list[int]]) -> bool:
    row = next((r.groups[group] for r in records if group in r.groups), None)
    ranks = {records[place].rank for place in rows}
    if row is None or ranks != set(members_of(row)):
        return False
    if any(call.group == group and call.seq >= 0 for r in records for call in r.comm):
        return False
    kinds = {tuple(records[place].comm[n].kind for n in each) for place, each in rows.items()}
    return len(kinds) == 1
