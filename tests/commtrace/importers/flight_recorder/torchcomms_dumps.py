"""Synthetic dumps of torchcomms' flight recorder.

Facts from comms/torchcomms/hooks/fr/FlightRecorder.cpp: a single sequence numbers all calls of a
process from 0, transfers included, which have neither a peer nor `is_p2p`; a group is named by its
communicator and described by its backend; an entry ends with an event of a device, or has only the
wall time from its issue to its end; a split of a communicator is an entry; there are no stacks and
no states of groups. The first versions named every backend `nccl`, listed ranks without brackets
and counted them within the communicator, and had no durations.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

START_NS = 1_760_000_000_000_000_000
DURATION_MS = 2.5


class Comms:
    """The flight recorder of a rank; `call` records a call on a communicator."""

    def __init__(
        self, rank: int, groups: dict[str, Sequence[int]], *, backend: str = "ncclx",
        first_version: bool = False,
    ) -> None:  # fmt: skip
        self.rank = rank
        self.backend = backend
        self.first_version = first_version
        self.groups = {name: ranks for name, ranks in groups.items() if rank in ranks}
        self.entries: list[dict[str, Any]] = []

    def call(
        self, name: str, group: str, *, sizes: Any = ((4,),), out: Any = None,
        end: str = "completed", dtype: str = "Float",
    ) -> Comms:  # fmt: skip
        """Record a call that `end`s as `completed` on a device, `retired` alone, or not at all."""
        number = len(self.entries)
        created = START_NS + 10_000_000 * number + 1000 * self.rank
        out = sizes if out is None else out
        entry = {
            "record_id": number,
            "pg_id": list(self.groups).index(group),
            "process_group": [group, self.backend],
            "thread_name": "python",
            "thread_id": "140401",
            "collective_seq_id": number,
            "p2p_seq_id": 0,
            "op_id": number,
            "profiling_name": f"{'nccl' if self.first_version else self.backend}:{name}",
            "time_created_ns": created,
            "input_sizes": [list(shape) for shape in sizes],
            "input_dtypes": [dtype] * len(sizes),
            "output_sizes": [list(shape) for shape in out],
            "output_dtypes": [dtype] * len(out),
            "state": "completed" if end == "completed" else "scheduled",
            "time_discovered_started_ns": created + 100 if end == "completed" else None,
            "time_discovered_completed_ns": created + 9_000_000 if end == "completed" else None,
            "retired": end != "none",
            "timeout_ms": 600_000,
            "is_p2p": False,
        }
        if end != "none" and not self.first_version:
            entry["duration_ms"] = DURATION_MS
        self.entries.append(entry)
        return self

    def document(self, *, last: int | None = None, only_active: bool = False) -> dict[str, Any]:
        """The dump of a ring buffer that holds all entries, or only the `last` entries."""
        entries = self.entries if last is None else self.entries[-last:]
        entries = [each for each in entries if not (only_active and each["retired"])]
        config = {
            name: {"name": name, "desc": self.backend, "ranks": self._ranks(ranks)}
            for name, ranks in self.groups.items()
        }
        about = {"version": "2.10", "comm_lib_version": "", "pg_status": {}, "pg_config": config}
        return about | {"entries": entries}

    def _ranks(self, ranks: Sequence[int]) -> str:
        if self.first_version:
            return ",".join(map(str, range(len(ranks))))
        return f"[{','.join(map(str, ranks))}]"


def write_comms(folder: Path, dumps: list[Comms], *, in_json: bool = False, **how: Any) -> Path:
    """Write each dump as `dump_file` does, or as `dump_json` returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    for dump in dumps:
        document = dump.document(**how)
        path = folder / f"comm_lib_trace_rank_{dump.rank}"
        if not in_json:
            path.write_bytes(pickle.dumps(document, protocol=2))
            continue
        for entry in document["entries"]:
            for key in ("time_discovered_started_ns", "time_discovered_completed_ns"):
                entry[key] = entry[key] or 0
        kept = {key: value for key, value in document.items() if key != "entries" or value}
        path.write_text(json.dumps(kept))
    return folder
