"""Progress of each rank on each of its groups, by `pg_status` of its dump.

    {pg_id: {"last_enqueued_collective": 41, "last_started_collective": -1,
             "last_completed_collective": 40}}

The status has every group on which the rank has called, also if the dump lists no call of it. But
it names groups by `pg_id`, the number of a group among those that the rank has created. Entries
have both; a group without an entry is numbered by the order of names, which torch counts. The
status counts transfers, too, so it says nothing about groups with transfers, about gloo, which
enters none, or about groups in which it contradicts the entries.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from commtrace.event import CommunicatorRow
from commtrace.importers.flight_recorder.entries import Dump, Progress
from commtrace.importers.rank_record import RankRecord, members_of


def set_progress(
    dumps: Sequence[Dump], records: Sequence[RankRecord], left_out: Collection[str]
) -> None:
    """Set the communicators of the records: the progress of each rank on each of its groups.

    Args:
        dumps: The dumps.
        records: Their records, with calls and groups.
        left_out: Groups whose calls torch does not number alone.
    """
    found = [
        _of_rank(dump, record) if dump.progress else {}
        for dump, record in zip(dumps, records, strict=True)
    ]
    doubtful = {
        entry.group
        for dump in dumps
        for entry in dump.entries
        if entry.is_transfer or entry.backend == "gloo"
    }
    doubtful |= {*left_out, *_contradicted(records, found)}
    for record, of_rank in zip(records, found, strict=True):
        record.communicators = [
            CommunicatorRow(
                rank=record.rank,
                group=group,
                num_enqueued=progress.enqueued,
                num_started=progress.started,
                num_completed=progress.completed,
            )
            for group, progress in of_rank.items()
            if group not in doubtful
        ]


def _of_rank(dump: Dump, record: RankRecord) -> dict[str, Progress]:
    """Return the progress by group, as far as it is certain which group each `pg_id` is."""
    ids = {entry.group: entry.pg_id for entry in dump.entries}
    ids |= _in_order(dump, ids)
    zero = Progress(0, 0, 0)
    return {
        group: Progress(*(max(number, 0) for number in dump.progress.get(pg_id, zero)))
        for group, pg_id in ids.items()
        if group in record.groups and record.rank in members_of(record.groups[group])
    }


def _in_order(dump: Dump, known: Mapping[str, int]) -> dict[str, int]:
    """Return the ids of groups by the order of their names, unless an entry disagrees."""
    names = [name for name, about in dump.groups.items() if about.ranks]
    if not all(name.isascii() and name.isdigit() and len(name) < 10 for name in names):
        return {}
    ids = {name: place for place, name in enumerate(sorted(names, key=int))}
    is_likely = max(dump.progress) < len(ids) and all(
        ids.get(name, number) == number for name, number in known.items()
    )
    return ids if is_likely else {}


def _contradicted(
    records: Sequence[RankRecord], found: Sequence[Mapping[str, Progress]]
) -> set[str]:
    """Return the groups whose status does not match their collectives.

    A rank has enqueued all calls that its dump lists. A call that any rank has completed has been
    enqueued by all others, except the last, which the root of a broadcast completes alone.
    """
    bad = set()
    lowest: dict[str, int] = {}
    highest: dict[str, int] = {}
    for record, of_rank in zip(records, found, strict=True):
        listed: dict[str, int] = {}
        for call in record.comm:
            listed[call.group] = max(call.seq, listed.get(call.group, 0))
        for group, progress in of_rank.items():
            if progress.enqueued < listed.get(group, 0):
                bad.add(group)
            lowest[group] = min(progress.enqueued, lowest.get(group, progress.enqueued))
            highest[group] = max(progress.completed, highest.get(group, 0))
    return bad | {group for group, most in highest.items() if most > lowest[group] + 1}
