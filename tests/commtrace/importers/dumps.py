"""Synthetic flight recorder dumps in the format of torch 2.13, to inject faults into.

The fields are those of torch/csrc/distributed/c10d/FlightRecorderDetail.hpp; a test in
`test_recorded_by_torch.py` compares them with a dump that torch itself writes.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

START_NS = 1_700_000_000_000_000_000
STATES = ("scheduled", "started", "completed")
ALL, LEFT, RIGHT = "0", "1", "2"
RANKS = {ALL: [0, 1, 2, 3], LEFT: [0, 1], RIGHT: [2, 3]}
_DESCRIPTIONS = {ALL: "default_pg", LEFT: "mesh_tp", RIGHT: "mesh_tp"}


class Dump:
    """The flight recorder of one rank; methods record the rank's calls."""

    def __init__(self, rank: int, *, backend: str = "nccl", ranks: Any = None) -> None:
        self.rank = rank
        self.backend = backend
        self.ranks: dict[str, list[int]] = ranks or RANKS
        self.entries: list[dict[str, Any]] = []
        self._seqs: dict[tuple[str, bool], int] = {}
        self._ops: dict[str, int] = {}
        self._first_group = 0

    def anew(self) -> Dump:
        """Destroy all groups and create others with the same names."""
        self._seqs.clear()
        self._ops.clear()
        self._first_group += len(RANKS)
        return self

    def call(self, name: str, group: str = ALL, **fields: Any) -> Dump:
        """Record one collective or transfer; `given` has `state`, `sizes` (of inputs), `out`,
        `dtype`.
        """
        is_p2p = name.startswith(("send", "recv"))
        seq = self._bump(group, is_p2p)
        self._entry(name, group, seq, is_p2p, **fields)
        return self

    def batch(self, names: list[str], group: str = ALL, *, closing: str = "coalesced",
              state: str = "completed", **fields: Any) -> Dump:  # fmt: skip
        """Record several calls in one launch: only the closing entry has their state."""
        is_p2p = names[0].startswith(("send", "recv"))
        seq = self._bump(group, is_p2p)
        for name in names:
            self._entry(name, group, seq, is_p2p, state="scheduled", **fields)
        self._entry(closing, group, seq, is_p2p, state=state, sizes=[], out=[])
        return self

    def _next_op(self, group: str) -> int:
        self._ops[group] = number = self._ops.get(group, 0) + 1
        return number

    def unlisted(self, group: str = ALL) -> Dump:
        """Run an operation that the backend does not enter, as gloo does with a send."""
        self._next_op(group)
        return self

    def _bump(self, group: str, is_p2p: bool) -> int:
        self._seqs[group, is_p2p] = seq = self._seqs.get((group, is_p2p), 0) + 1
        return seq

    def _entry(
        self,
        name: str,
        group: str,
        seq: int,
        is_p2p: bool,
        *,
        state: str = "completed",
        sizes: Any = ((8, 16),),
        out: Any = None,
        dtype: str = "BFloat16",
    ) -> None:
        number = len(self.entries)
        created = START_NS + 1_000_000 * number + 1000 * self.rank
        out = sizes if out is None else out
        self.entries.append(
            {
                "frames": [
                    {"name": "all_reduce", "filename": "/v/site-packages/torch/x.py", "line": 9},
                    {"name": "step", "filename": "/home/user/train.py", "line": 40 + number % 7},
                    {"name": "<module>", "filename": "/home/user/train.py", "line": 99},
                ],
                "record_id": number,
                "pg_id": self._first_group + int(group),
                "process_group": (group, _DESCRIPTIONS.get(group, "undefined")),
                "thread_name": "python",
                "thread_id": "1401",
                "collective_seq_id": 0 if is_p2p else seq,
                "p2p_seq_id": seq if is_p2p else 0,
                "op_id": self._next_op(group),
                "profiling_name": f"{self.backend}:{name}",
                "time_created_ns": created,
                "input_sizes": [list(shape) for shape in sizes],
                "input_dtypes": [dtype] * len(sizes),
                "output_sizes": [list(shape) for shape in out],
                "output_dtypes": [dtype] * len(out),
                "state": state,
                "time_discovered_started_ns": created + 100 if state != "scheduled" else None,
                "time_discovered_completed_ns": created + 500_000 if state == "completed" else None,
                "retired": state == "completed",
                "timeout_ms": 600_000,
                "is_p2p": is_p2p,
            }
        )

    def document(self, *, last: int | None = None) -> dict[str, Any]:
        """The dump of a ring buffer that holds all entries, or the `last` ones only."""
        entries = self.entries if last is None else self.entries[-last:]
        config = {
            name: {"name": name, "desc": _DESCRIPTIONS.get(name, "undefined"), "ranks": str(ranks)}
            for name, ranks in self.ranks.items()
            if self.rank in ranks
        }
        return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}


def write_dumps(folder: Path, dumps: list[Dump], *, as_json: bool = False, **how: Any) -> Path:
    """Write each dump to a file in `folder`, with torch's names and pickle protocol 2."""
    folder.mkdir(parents=True, exist_ok=True)
    for dump in dumps:
        document = dump.document(**how)
        path = folder / f"nccl_trace_rank_{dump.rank}"
        if as_json:
            for entry in document["entries"]:
                entry.pop("frames")
            path.with_suffix(".json").write_text(json.dumps(document))
        else:
            path.write_bytes(pickle.dumps(document, protocol=2))
    return folder


def healthy(num_steps: int = 3, **fields: Any) -> list[Dump]:
    """Four ranks, two groups, a pipeline of sends, and a batch of transfers in each step."""
    dumps = [Dump(rank, **fields) for rank in range(4)]
    for dump in dumps:
        rank, half = dump.rank, LEFT if dump.rank < 2 else RIGHT
        for _ in range(num_steps):
            dump.call("broadcast").call("all_reduce", half)
            dump.call("_all_gather_base", half, sizes=[[4]], out=[[8]])
            other = (rank + 1) % 2  # ranks within the group of two
            dump.batch([f"send {rank % 2}->{other}", f"recv {rank % 2}<-{other}"], half)
            dump.batch(["_broadcast_oop"] * 4, closing="ALLGATHER_coalesced", sizes=[[2]])
            dump.call("all_reduce_barrier", sizes=[[1]], dtype="Float")
    return dumps
