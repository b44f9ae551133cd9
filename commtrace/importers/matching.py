"""Calls of several ranks that belong together, where the files do not say so.

The ranks of a group may be missing, or the numbers of its calls. Each is inferred only where the
calls of all ranks agree on it, and reported. `stream_groups` infers groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from commtrace.importers.rank_record import RankRecord, members_of
from commtrace.schema import STREAM
from commtrace.torch_names import NOT_KNOWN, TRANSFERS, payload_of, wire_of


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

    The default group has all ranks, and so has a group of that size. Other groups have the ranks
    whose calls on them were recorded, unless it is known that they have more.
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
            has_all = row.description == "default_pg" or row.size == world_size
            ranks = range(world_size) if has_all else sorted(callers.get(name, ()))
            if row.size not in (NOT_KNOWN, len(ranks)):
                continue
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
    unnumbered: dict[tuple[str, str], dict[int, list[int]]] = {}
    for place, record in enumerate(records):
        for row, call in enumerate(record.comm):
            if call.seq < 0 and call.kind not in TRANSFERS:
                group = _group_of(record, call)
                unnumbered.setdefault(group, {}).setdefault(place, []).append(row)
    numbered_groups = {
        _group_of(record, call) for record in records for call in record.comm if call.seq >= 0
    }
    numbered = left = 0
    for group, rows in unnumbered.items():
        if group not in numbered_groups and _fits(records, group, rows):
            for place, of_rank in rows.items():
                calls = records[place].comm
                for seq, row in enumerate(of_rank):
                    calls[row] = calls[row]._replace(seq=seq)
            numbered += sum(map(len, rows.values()))
        else:
            left += sum(map(len, rows.values()))
    return numbered, left


def _group_of(record: RankRecord, call: Any) -> tuple[str, str]:
    """Return the name of a call's group and its ranks: several groups may share a name."""
    row = record.groups.get(call.group)
    return call.group, row.ranks if row is not None else ""


def _fits(
    records: Sequence[RankRecord], group: tuple[str, str], rows: Mapping[int, list[int]]
) -> bool:
    members = ",".join(str(rank) for rank in sorted(records[place].rank for place in rows))
    kinds = {tuple(records[place].comm[n].kind for n in each) for place, each in rows.items()}
    return len(kinds) == 1 and members == ",".join(sorted(group[1].split(","), key=_number))


def _number(rank: str) -> int:
    return int(rank) if rank else -1
