"""Logs of NCCL Inspector in the layouts of its releases, generated from operations.

The fields are those that the sources of each release write (docs/exchange.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DUMPED_US = 1_752_867_229_276_385


@dataclass(frozen=True)
class InspectorLayout:
    """Fields of the lines of a release; `version` is the format's."""

    name: str
    version: str = "v4.0"
    has_p2p: bool = True
    has_name: bool = True
    has_algorithm: bool = True
    has_stats: bool = True
    has_shared_header: bool = False
    is_verbose: bool = False


LAYOUTS = (
    InspectorLayout(
        "2.28", has_p2p=False, has_name=False, has_algorithm=False, has_stats=False
    ),
    InspectorLayout("2.29", has_algorithm=False, has_stats=False),
    InspectorLayout("2.29 verbose", has_algorithm=False, has_stats=False, is_verbose=True),
    InspectorLayout("4.2", "v4.2"),
    InspectorLayout("4.2 verbose", "v4.2", is_verbose=True),
    InspectorLayout("4.3", "v4.3", has_shared_header=True),
    InspectorLayout("4.3 verbose", "v4.3", has_shared_header=True, is_verbose=True),
)  # fmt: skip


@dataclass(frozen=True)
class Operation:
    """An operation as NCCL runs it: `size` refers to the count it is given."""

    function: str
    number: int
    size: int
    lasts_us: int
    peer: int = -1
    at_us: int = 0
    source: str = "kernel_gpu"
    busbw: float | None = None

    @property
    def is_p2p(self) -> bool:
        return self.peer >= 0


@dataclass(frozen=True)
class Communicator:
    """A communicator as seen by a rank of it, with the operations that it dumps."""

    id: str
    rank: int
    size: int
    operations: Sequence[Operation] = ()
    name: str = "unknown"
    more: dict[str, Any] = field(default_factory=dict)


def log_of(
    layout: InspectorLayout,
    communicators: Iterable[Communicator],
    *,
    host: str = "node0",
    pid: int = 4711,
) -> str:
    """The log of a process, with a dump of each communicator."""
    lines = []
    for communicator in communicators:
        context = _context(layout, communicator, host, pid)
        if layout.has_stats:
            counts = {
                "coll_records": sum(not each.is_p2p for each in communicator.operations),
                "coll_dropped_total": communicator.more.get("dropped", 0),
                "coll_dropped_since_last_dump": 0,
                "p2p_records": sum(each.is_p2p for each in communicator.operations),
                "p2p_dropped_total": 0,
                "p2p_dropped_since_last_dump": 0,
            }
            lines.append(context | {"dump_stats": counts})
        own = {} if layout.has_shared_header else context
        lines += [
            own | _operation(layout, each, communicator.size)
            for each in communicator.operations
            if layout.has_p2p or not each.is_p2p
        ]
    return "".join(f"{json.dumps(line)}\n" for line in lines)


def write_log(folder: Path, layout: InspectorLayout, *args: Any, **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{more.get('host', 'node0')}-pid{more.get('pid', 4711)}.log"
    path.write_text(log_of(layout, *args, **more))
    return path


def _context(
    layout: InspectorLayout, communicator: Communicator, host: str, pid: int
) -> dict[str, Any]:
    header: dict[str, Any] = {"id": communicator.id}
    if layout.has_name:
        header["comm_name"] = communicator.name
    header |= {"rank": communicator.rank, "n_ranks": communicator.size, "nnodes": 1}
    metadata = {
        "inspector_output_format_version": layout.version,
        "git_rev": "9019a1912-dirty",
        "rec_mechanism": "nccl_profiler_interface",
        "dump_timestamp_us": communicator.more.get("dumped_us", DUMPED_US),
        "hostname": host,
        "pid": pid,
    }
    return {"header": header, "metadata": metadata}


_FACTORS = {
    "AllReduce": lambda n: 2 * (n - 1) / n,
    "AllGather": lambda n: n - 1,
    "ReduceScatter": lambda n: n - 1,
}  # of the size of one rank


def _operation(layout: InspectorLayout, operation: Operation, num_ranks: int) -> dict[str, Any]:
    prefix = "p2p" if operation.is_p2p else "coll"
    factor = _FACTORS.get(operation.function, lambda _: 1)(num_ranks)
    busbw = operation.size * factor / operation.lasts_us / 1000 if operation.lasts_us else 0.0
    found: dict[str, Any] = {prefix: operation.function}
    if layout.has_algorithm and not operation.is_p2p:
        found |= {"coll_algo": "RING", "coll_proto": "LL"}
    found[f"{prefix}_sn"] = operation.number
    if operation.is_p2p:
        found["p2p_peer"] = operation.peer
    found |= {
        f"{prefix}_msg_size_bytes": operation.size,
        f"{prefix}_exec_time_us": operation.lasts_us,
        f"{prefix}_timing_source": operation.source,
        f"{prefix}_algobw_gbs": 1.0,
        f"{prefix}_busbw_gbs": round(busbw, 6) if operation.busbw is None else operation.busbw,
    }
    if layout.is_verbose:
        found |= _trace(operation, prefix)
    return {f"{prefix}_perf": found}


def _trace(operation: Operation, prefix: str) -> dict[str, Any]:
    """Two channels: the second starts later and ends later by a microsecond."""
    at = DUMPED_US + operation.at_us
    channels = range(2)
    return {
        "event_trace_sn": {
            f"{prefix}_start_sn": 1,
            f"{prefix}_stop_sn": 2,
            "kernel_events": [
                {"channel_id": n, "kernel_start_sn": 3, "kernel_stop_sn": 5, "kernel_record_sn": 4}
                for n in channels
            ],
        },
        "event_trace_ts": {
            f"{prefix}_start_ts": at,
            f"{prefix}_stop_ts": at + 2,
            "kernel_events": [
                {
                    "channel_id": n,
                    "kernel_start_ts": at + 5 + n,
                    "kernel_stop_ts": at + 5 + n + operation.lasts_us,
                    "kernel_record_ts": at + 5 + n + operation.lasts_us,
                }
                for n in channels
            ],
        },
    }
