"""Operations of NCCL as a recording's calls would be, with known times on the device.

    export = Export(trace)
    export.write(folder, LAYOUTS[0])       # a log for each rank
    export.device_ns[rank, call_id]        # what a join must find

The exported communicators have the recorded groups' members in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from commtrace.event import ROWS
from commtrace.tracefile import Trace
from dtensor_core.testing import run_processes
from tests.commtrace.importers.inspector.layouts import (
    DUMPED_US,
    Communicator,
    InspectorLayout,
    Operation,
    write_log,
)

FUNCTIONS = {
    "all_reduce": "AllReduce",
    "barrier": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "broadcast": "Broadcast",
    "send": "Send",
    "recv": "Recv",
}
_OF_PARTS = ("all_gather", "reduce_scatter")


def rows(trace: Trace, table: str) -> list[Any]:
    return [ROWS[table](*row) for row in trace.rows(table)]


def recorded_by(program: Callable[[str], None], num_ranks: int, folder: Path) -> Path:
    """Run a program, which records itself into the file that it is given, on gloo ranks."""
    path = folder / "run.json"
    run_processes(program, num_ranks, str(path), timeout_s=60)
    return path


Change = Callable[[Operation], Operation | None]


@dataclass
class Export:
    """Logs of a recording; `late` first operations of each kind precede the recording."""

    trace: Trace
    late: int = 0
    ids: Mapping[str, str] = field(default_factory=dict)
    device_ns: dict[tuple[int, int], int] = field(default_factory=dict)

    def communicators(self, rank: int) -> list[Communicator]:
        found = []
        for place, group in enumerate(rows(self.trace, "groups")):
            members = [int(each) for each in group.ranks.split(",")]
            if rank in members:
                own = self._operations(rank, group)
                name = self.ids.get(group.name, f"0x{0xA0 + place:x}")
                found.append(Communicator(name, members.index(rank), len(members), own))
        return found

    def _operations(self, rank: int, group: Any) -> list[Operation]:
        numbers: dict[str, int] = {}
        found = []
        calls = [c for c in rows(self.trace, "comm") if (c.rank, c.group) == (rank, group.name)]
        members = [int(each) for each in group.ranks.split(",")]
        for call in sorted(calls, key=lambda each: (each.seq, each.id)):
            function = FUNCTIONS.get(call.kind)
            if function is None:
                continue
            number = numbers.setdefault(function, self.late)
            numbers[function] = number + 1
            lasts = 100 + 7 * call.id + rank
            self.device_ns[rank, call.id] = lasts * 1000
            size = call.payload_bytes // (group.size if call.kind in _OF_PARTS else 1)
            at = call.issue_ns // 1000 + 1 - DUMPED_US
            size = 4 if call.kind == "barrier" else size
            peer = members.index(call.peer) if call.peer >= 0 else -1
            found.append(Operation(function, number, size, lasts, peer, at))
        return found

    def write(
        self,
        folder: Path,
        layout: InspectorLayout,
        change: Change = lambda operation: operation,
        *,
        pids: Callable[[int], int] = lambda rank: 100 + rank,
        host: str = "node0",
    ) -> Path:
        end = max(row.end_ns for row in rows(self.trace, "ranks")) // 1000
        for rank in sorted(row.rank for row in rows(self.trace, "ranks")):
            own = []
            for each in self.communicators(rank):
                changed = [c for c in map(change, each.operations) if c is not None]
                more = {"dumped_us": end + 1_000_000}
                own.append(replace(each, operations=changed, more=more))
            write_log(folder, layout, own, host=host, pid=pids(rank))
        return folder
