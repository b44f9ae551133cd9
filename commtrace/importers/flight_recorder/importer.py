"""Importer of flight-recorder dumps, which torch's watchdog writes when a collective times out.

    a file ─> Dump (`entries`) ─> worlds of groups (`worlds`) ─> `launches`
           ─> rows of table `comm` (`rows`)

The buffer is a ring: entries may begin at any number, and earlier entries are lost. A group whose
ranks no dump lists has the ranks that called on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from commtrace.event import CommEvent
from commtrace.importers.device_times.timings import COLLECTIVES, KnownGroup, Timing, Timings
from commtrace.importers.flight_recorder.entries import Dump, StatedGroup
from commtrace.importers.flight_recorder.group_creation import unlike_groups
from commtrace.importers.flight_recorder.lacks import lacks_of
from commtrace.importers.flight_recorder.launches import CallLaunch, launches_of, number_collectives
from commtrace.importers.flight_recorder.partial_dumps import (
    list_calls_in_flight,
    partial_ranks,
    unsure_ranks,
)
from commtrace.importers.flight_recorder.progress import set_progress
from commtrace.importers.flight_recorder.rows import rows_of
from commtrace.importers.flight_recorder.worlds import numbered, with_names, worlds_of
from commtrace.importers.input_files import Document
from commtrace.importers.matching import infer_members
from commtrace.importers.rank_record import Imported, RankRecord, group_row, members_of, ranks_of
from commtrace.torch_names import NOT_KNOWN, TRANSFERS


def read_dumps(documents: Sequence[Document]) -> Imported:
    """Import dumps rank by rank, and list the missing information.

    The contents of the documents are those that `dump_of` returns.
    """
    dumps: list[Dump] = [document.content for document in documents]
    ranks = ranks_of(documents, [_stated_rank(dump) for dump in dumps])
    worlds = numbered([worlds_of(dump) for dump in dumps])
    dumps = [with_names(dump, numbers) for dump, numbers in zip(dumps, worlds, strict=True)]
    groups = _groups(dumps, ranks.numbers)
    records = [
        RankRecord(rank, dump.path, groups=rows)
        for rank, dump, rows in zip(ranks.numbers, dumps, groups, strict=True)
    ]
    in_flight_only = list_calls_in_flight(dumps)
    launches = [launches_of(dump, in_flight_only=in_flight_only) for dump in dumps]
    inferred = _complete_groups(dumps, records, launches)
    first, skewed, unnumbered = number_collectives(
        dumps, launches, _ambiguous(dumps, records), in_flight_only=in_flight_only
    )
    for record, dump, of_rank in zip(records, dumps, launches, strict=True):
        record.comm = [row for launch in of_rank for row in rows_of(record, launch, dump)]
        _number_rows(record, dump)
        _bound(record)
    set_progress(dumps, records, {*skewed, *unnumbered})
    partial = partial_ranks(dumps, records, in_flight_only=in_flight_only)
    facts: dict[str, Any] = {
        "partial_dumps": partial,
        "unsure_ranks": unsure_ranks(records, partial),
        "first_number": first,
    }
    facts["unlike_groups"] = unlike_groups(dumps, ranks.numbers)
    lacks = lacks_of(dumps, inferred, unnumbered, in_flight_only=in_flight_only)
    facts = {name: fact for name, fact in facts.items() if fact}
    return Imported(
        records, ranks.source, lacks, facts=facts, timings=lambda: _timings(records, first)
    )


def _timings(records: Sequence[RankRecord], first: int) -> Timings:
    """Return the calls; those with numbers can be joined to a recording."""
    groups = {
        (row.name, row.ranks): KnownGroup(row.size, dict(enumerate(members_of(row))))
        for record in records
        for row in record.groups.values()
    }
    # Groups of different ranks may have one name.
    same = Counter(name for name, _ in groups)
    names = {key: f"{key[0]} of ranks {key[1]}" if same[key[0]] > 1 else key[0] for key in groups}
    calls = (
        _timing(call, names[call.group, record.groups[call.group].ranks], first)
        for record in records
        for call in record.comm
    )
    return Timings({names[key]: group for key, group in groups.items()}, calls)


def _timing(call: Any, group: str, first: int) -> Timing:
    is_transfer = call.kind in TRANSFERS
    counter = COLLECTIVES if call.seq >= 0 else f"{call.kind} without a number"
    return Timing(
        call.rank,
        group,
        call.kind if is_transfer else counter,
        call.seq - first if call.seq >= 0 else NOT_KNOWN,
        call.kind,
        call.payload_bytes,
        call.device_ns,
        call.peer,
        call.issue_ns,
    )


def _stated_rank(dump: Dump) -> int:
    """Return the rank that a dump states, or its transfers imply: `send 1->0` is group rank 1."""
    if dump.rank >= 0:
        return dump.rank
    found = set()
    for entry in dump.entries:
        about = dump.groups.get(entry.group)
        if about is not None and 0 <= entry.ends[0] < len(about.ranks):
            found.add(about.ranks[entry.ends[0]])
    return found.pop() if len(found) == 1 else NOT_KNOWN


def _groups(dumps: Sequence[Dump], ranks: Sequence[int]) -> list[dict[str, Any]]:
    """Return the groups of each rank; a group of all ranks may have numbered them by itself."""
    sizes = [about.size for dump in dumps for about in dump.groups.values()]
    world_size = max(sizes, default=0) if max(sizes, default=0) > max(ranks) else 0
    return [_groups_of(dump, world_size) for dump in dumps]


def _groups_of(dump: Dump, world_size: int) -> dict[str, Any]:
    backend = dump.entries[0].backend if dump.entries else ""
    backends = {entry.group: entry.backend for entry in dump.entries}
    called_on = {
        entry.group: StatedGroup(entry.description, (), NOT_KNOWN) for entry in dump.entries
    }
    # gloo lists a group before it has a name.
    listed = {name: about for name, about in dump.groups.items() if name and about.size > 0}
    rows = {}
    for name, about in (called_on | listed).items():
        ranks = about.ranks or (range(about.size) if about.size == world_size else ())
        rows[name] = group_row(name, about.description, ranks, backends.get(name, backend))
    return rows


def _complete_groups(
    dumps: Sequence[Dump], records: Sequence[RankRecord], launches: Sequence[Sequence[CallLaunch]]
) -> list[str]:
    """Infer the ranks of groups from the calls on them; return the names of those groups."""
    for record, of_rank in zip(records, launches, strict=True):
        names = dict.fromkeys(launch.first.group for launch in of_rank)
        record.comm = [CommEvent(rank=record.rank, group=name) for name in names]
    # By text, since every rank of a large job states the same groups.
    groups = {row.ranks: row for each in records for row in each.groups.values()}
    highest = [max(members_of(row), default=0) for row in groups.values()]
    # gloo lists a group before it has a name: it is no row, but has ranks.
    highest += [max(dump.groups[""].ranks, default=0) for dump in dumps if "" in dump.groups]
    world_size = 1 + max([*highest, *[record.rank for record in records]])
    for record in records:
        record.world_size = world_size
    return infer_members(records, world_size)


def _ambiguous(dumps: Sequence[Dump], records: Sequence[RankRecord]) -> set[str]:
    """Return names on which more ranks call than the group has, so that several groups have it."""
    sizes = {
        name: about.size
        for dump in dumps
        for name, about in dump.groups.items()
        if about.size > 0 and not about.ranks
    }
    callers: dict[str, set[int]] = {name: set() for name in sizes}
    for record in records:
        for call in record.comm:
            if call.group in callers:
                callers[call.group].add(record.rank)
    return {name for name, size in sizes.items() if len(callers[name]) > size}


def _number_rows(record: RankRecord, dump: Dump) -> None:
    """Sort calls by issue time; keep the dump's numbers if they are in that order.

    They are not if the recorder was reset: it then counts from the beginning, and older entries not
    yet overwritten have higher or equal numbers. In a whole dump, the first call is number 0.
    """
    record.comm.sort(key=lambda row: (row.issue_ns, row.id))
    numbers = [row.id for row in record.comm]
    is_late = dump.is_whole and numbers[:1] > [0]
    if is_late or any(later <= earlier for earlier, later in pairwise(numbers)):
        record.comm = [row._replace(id=place) for place, row in enumerate(record.comm)]


def _bound(record: RankRecord) -> None:
    instants = [row.issue_ns for row in record.comm] + [row.complete_ns for row in record.comm]
    known = [instant for instant in instants if instant >= 0]
    record.start_ns, record.end_ns = min(known, default=0), max(known, default=0)
