"""One row of each table, as a named tuple with the schema's columns in order.

The recorder creates them and the trace file writes them; no code in between names a column. Omitted
fields hold the value for "not known".

    CommEvent(rank=0, id=7, kind="all_reduce").payload_bytes == -1
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any

from commtrace.schema import (
    ACTIONS,
    COMM,
    COMMUNICATORS,
    FINGERPRINTS,
    GROUPS,
    HOST_EVENTS,
    KERNELS,
    LATER_WAITS,
    OPS,
    RANKS,
    REMOVED_CALLS,
    SOURCES,
    STEPS,
    SYNCS,
    Column,
)


def _row_type(name: str, columns: tuple[Column, ...], meaning: str) -> Any:
    row = namedtuple(
        name,
        [column.name for column in columns],
        defaults=[column.missing for column in columns],
        module=__name__,
    )
    row.__doc__ = meaning
    return row


CommEvent = _row_type("CommEvent", COMM, "One communication call of one rank.")
OpEvent = _row_type("OpEvent", OPS, "One operator that one rank ran.")
KernelRow = _row_type("KernelRow", KERNELS, "One kernel or copy on a device of one rank.")
FingerprintRow = _row_type(
    "FingerprintRow", FINGERPRINTS, "Fingerprint of a tensor, of one rank's part of it."
)
HostEventRow = _row_type(
    "HostEventRow", HOST_EVENTS, "What happened on the host of one rank, beside its calls."
)
ActionRow = _row_type(
    "ActionRow", ACTIONS, "One computation of a pipeline stage on one micro-batch."
)
LaterWaitRow = _row_type("LaterWaitRow", LATER_WAITS, "One further wait for a call of one rank.")
SyncRow = _row_type("SyncRow", SYNCS, "One event, or one wait for a device, of one rank.")
CommunicatorRow = _row_type(
    "CommunicatorRow", COMMUNICATORS, "Calls of a kind that a member of a communicator launched."
)
RemovedCallsRow = _row_type(
    "RemovedCallsRow", REMOVED_CALLS, "Collectives of one rank in a group that a ring has replaced."
)
GroupRow = _row_type("GroupRow", GROUPS, "One process group.")
RankRow = _row_type("RankRow", RANKS, "One rank of the run.")
StepRow = _row_type("StepRow", STEPS, "One step of one rank.")
SourceRow = _row_type("SourceRow", SOURCES, "A few lines of a source file.")

ROWS: dict[str, Any] = {
    "comm": CommEvent,
    "ops": OpEvent,
    "kernels": KernelRow,
    "fingerprints": FingerprintRow,
    "host_events": HostEventRow,
    "pipeline_actions": ActionRow,
    "later_waits": LaterWaitRow,
    "syncs": SyncRow,
    "communicators": CommunicatorRow,
    "removed_calls": RemovedCallsRow,
    "groups": GroupRow,
    "ranks": RankRow,
    "steps": StepRow,
    "sources": SourceRow,
}
