"""Dumps that do not list all calls of their ring buffer: those in flight alone, or none.

A rank without a call in such a dump may have made it, so that it cannot be blamed unless its
progress on the group is known (`progress`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from commtrace.importers.flight_recorder.entries import Dump
from commtrace.importers.rank_record import RankRecord, members_of


def list_calls_in_flight(dumps: Sequence[Dump]) -> bool:
    """Return whether dumps list only calls that had not ended when they were written.

    No call has ended then, although calls are left out between the others or before them. gloo
    never knows that a call has ended.
    """
    has_gap = False
    for dump in dumps:
        is_of_torchcomms = dump.is_of_torchcomms
        for place, entry in enumerate(dump.entries):
            if entry.complete_ns >= 0 or (is_of_torchcomms and entry.is_retired):
                return False
            if entry.backend == "gloo" and not is_of_torchcomms:
                return False
            has_gap = has_gap or entry.number != place
    return has_gap


def partial_ranks(
    dumps: Sequence[Dump], records: Sequence[RankRecord], *, in_flight_only: bool
) -> list[int]:
    """Return the ranks whose dumps do not list all calls of their ring buffer."""
    return [
        record.rank
        for dump, record in zip(dumps, records, strict=True)
        if in_flight_only or (not dump.entries and dump.progress)
    ]


def unsure_ranks(records: Sequence[RankRecord], partial: Sequence[int]) -> list[int]:
    """Return the ranks in `partial` that may have made a call which only others list."""
    first: dict[str, int] = {}
    for record in records:
        for call in record.comm:
            if call.seq >= 0:
                first[call.group] = min(call.seq, first.get(call.group, call.seq))
    return [
        record.rank for record in records if record.rank in partial and _is_unsure(record, first)
    ]


def _is_unsure(record: RankRecord, first: Mapping[str, int]) -> bool:
    listed = {call.group for call in record.comm if call.seq >= 0}
    listed |= {each.group for each in record.communicators}
    for name in first.keys() - listed:
        row = record.groups.get(name)
        if row is None or record.rank not in members_of(row):
            continue
        return True
    return False
