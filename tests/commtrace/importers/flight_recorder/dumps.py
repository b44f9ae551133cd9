"""Synthetic flight recorder dumps in the layouts of torch's releases, to inject faults into.

Fields and numbers come from `dump_layouts`; a test in `test_recorded_by_torch.py` compares the
newest with a dump that torch itself writes. torch numbers launches as here: every launch increases
the number of collectives or of transfers of its group, and an entry has both.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

from commtrace.analyze import CATALOG, load
from commtrace.importers import import_trace
from tests.commtrace.importers.flight_recorder.layouts import LAYOUTS, Layout

START_NS = 1_700_000_000_000_000_000
STATES = ("scheduled", "started", "completed")
ALL, LEFT, RIGHT = "0", "1", "2"
RANKS = {ALL: [0, 1, 2, 3], LEFT: [0, 1], RIGHT: [2, 3]}
_DESCRIPTIONS = {ALL: "default_pg", LEFT: "mesh_tp", RIGHT: "mesh_tp"}
_LATER_FIELDS = ("timeout_ms", "thread_id", "thread_name")
_NO_TENSOR = (0,)
"""Shape of an undefined tensor."""
_NONE_YET = {
    "last_enqueued_collective": -1,
    "last_started_collective": -1,
    "last_completed_collective": -1,
}


class _Numbers:
    """Numbers of a group on a rank."""

    collective = 0
    p2p = 0
    op = 0


class Dump:
    """The flight recorder of a rank; methods record the rank's calls."""

    def __init__(
        self, rank: int, *, backend: str = "nccl", ranks: Any = None, torch: str = "2.13"
    ) -> None:
        self.rank = rank
        self.backend = backend
        self.layout: Layout = LAYOUTS[torch]
        self.ranks: dict[str, list[int]] = ranks or RANKS
        self.entries: list[dict[str, Any]] = []
        self._numbers: dict[str, _Numbers] = {}
        self._status: dict[str, dict[str, int]] = {}
        self._first_group = 0

    def anew(self) -> Dump:
        """Destroy all groups and create others with the same names."""
        self._numbers.clear()
        self._first_group += len(RANKS)
        return self

    def call(self, name: str, group: str = ALL, **fields: Any) -> Dump:
        """Record a collective or transfer; `fields` has `state`, `sizes` (of inputs), `out`,
        `dtype`, `duration_ms`, `function` (innermost frame).
        """
        numbers = self._of(group)
        numbers.op += 1
        if is_transfer(name):
            numbers.p2p += 1
        else:
            numbers.collective += 1
        in_p2p = is_transfer(name) and self.layout.counts_transfers_apart
        self._enqueued(group, in_p2p=in_p2p, state=fields.get("state", "completed"))
        self._entry(name, group, **fields)
        return self

    def batch(self, names: list[str], group: str = ALL, *, closing: str = "coalesced",
              state: str = "completed", **fields: Any) -> Dump:  # fmt: skip
        """Record several calls in a single launch: only the closing entry has their state."""
        numbers, of_transfers = self._of(group), is_transfer(names[0])
        apart = self.layout.counts_transfers_apart
        numbers.p2p += of_transfers and apart
        numbers.collective += not (of_transfers and apart)
        for name in names:
            numbers.op += 1
            if of_transfers or self.layout.enters_parts:
                self._entry(name, group, state="scheduled", **fields)
            elif not apart:
                numbers.collective += 1
        self._enqueued(group, in_p2p=of_transfers and apart, state=state)
        title = closing if self.layout.enters_parts else "coalesced"
        self._entry(title, group, state=state, sizes=[], out=[])
        return self

    def rooted(
        self, name: str, shape: list[int], root: int, group: str = ALL, **fields: Any
    ) -> Dump:
        """Record a gather or scatter as NCCL does: its own tensor, then the list of the root."""
        num = len(self.ranks[group]) if self.layout.enters_lists else 1
        lists = [shape] * num if self.rank == root else [_NO_TENSOR]
        return self.call(name, group, sizes=[shape], out=lists, **fields)

    def all_to_all(self, sent: list[list[int]], received: list[list[int]], group: str = ALL,
                   **fields: Any) -> Dump:  # fmt: skip
        """Record an all-to-all of lists."""
        num = len(sent) if self.layout.enters_lists else 1
        fields = {"function": "all_to_all"} | fields
        return self.call("all_to_all", group, sizes=sent[:num], out=received[:num], **fields)

    def barrier(self, group: str = ALL, **fields: Any) -> Dump:
        """Record a barrier."""
        return self.call(self.layout.barrier, group, sizes=[[1]], dtype="Float", **fields)

    def unlisted(self, group: str = ALL) -> Dump:
        """Run an operation that the backend does not enter, as gloo does with a send."""
        self._of(group).op += 1
        return self

    def _of(self, group: str) -> _Numbers:
        return self._numbers.setdefault(group, _Numbers())

    def _entry(
        self,
        name: str,
        group: str,
        *,
        state: str = "completed",
        sizes: Any = ((8, 16),),
        out: Any = None,
        dtype: str = "BFloat16",
        duration_ms: float | None = None,
        function: str = "all_reduce",
    ) -> None:
        number, numbers = len(self.entries), self._of(group)
        created = START_NS + 1_000_000 * number + 1000 * self.rank
        out = sizes if out is None else out
        entry = {
            "frames": [
                {"name": function, "filename": "/v/site-packages/torch/x.py", "line": 9},
                {"name": "step", "filename": "/home/user/train.py", "line": 40 + number % 7},
                {"name": "<module>", "filename": "/home/user/train.py", "line": 99},
            ],
            "record_id": number,
            "pg_id": self._first_group + int(group),
            "process_group": (group, _DESCRIPTIONS.get(group, "undefined")),
            "thread_name": "python",
            "thread_id": "1401",
            "collective_seq_id": numbers.collective,
            "p2p_seq_id": numbers.p2p,
            "op_id": numbers.op,
            "profiling_name": f"{self.backend}:{name}",
            "time_created_ns": created,
            "input_sizes": [list(shape) for shape in sizes],
            "input_dtypes": [_dtype(shape, dtype) for shape in sizes],
            "output_sizes": [list(shape) for shape in out],
            "output_dtypes": [_dtype(shape, dtype) for shape in out],
            "state": state,
            "time_discovered_started_ns": created + 100 if state != "scheduled" else None,
            "time_discovered_completed_ns": created + 500_000 if state == "completed" else None,
            "retired": state == "completed",
            "timeout_ms": 600_000,
            "is_p2p": is_transfer(name),
        }
        if duration_ms is not None:
            entry["duration_ms"] = duration_ms
        for field in set(_LATER_FIELDS) - set(self.layout.added):
            del entry[field]
        self.entries.append(entry)

    def document(
        self,
        *,
        last: int | None = None,
        only_active: bool = False,
        collectives: bool = True,
        stacks: bool = True,
    ) -> dict[str, Any]:
        """The dump of a ring buffer that holds all entries, or only the `last` entries.

        Args:
            last: Number of entries that the ring buffer holds.
            only_active: List calls in flight only.
            collectives: List calls at all.
            stacks: Include the Python frames.
        """
        entries = self.entries if last is None else self.entries[-last:]
        if only_active:
            entries = [each for each in entries if each["time_discovered_completed_ns"] is None]
        if not stacks:
            entries = [{k: v for k, v in each.items() if k != "frames"} for each in entries]
        config = {
            name: {"name": name, "desc": _DESCRIPTIONS.get(name, "undefined"), "ranks": str(ranks)}
            for name, ranks in self.ranks.items()
            if self.rank in ranks
        }
        document: dict[str, Any] = {"version": self.layout.version, "pg_config": config}
        if self.layout.library:
            document[self.layout.library] = "2.27.5"
        if self.layout.has_status:
            document["pg_status"] = self._status
        return document | ({"entries": entries} if collectives else {})

    def _enqueued(self, group: str, *, in_p2p: bool, state: str) -> None:
        """Note the number of a launch, among transfers if these are counted apart."""
        numbers = self._of(group)
        about = self._status.setdefault(str(self._first_group + int(group)), dict(_NONE_YET))
        about["last_enqueued_collective"] = numbers.p2p if in_p2p else numbers.collective
        if state == "completed":
            about["last_completed_collective"] = about["last_enqueued_collective"]


def is_transfer(name: str) -> bool:
    """Return whether an entry of this name is a send or a recv."""
    return name.startswith(("send", "recv"))


def _dtype(shape: Any, dtype: str) -> str:
    return "Undefined" if shape is _NO_TENSOR else dtype


def as_json(document: dict[str, Any]) -> str:
    """The JSON form of a dump: no frames, 0 for unknown times, numbers of `pg_status` as text."""
    entries = [
        {
            key: 0 if value is None and key.startswith("time_") else value
            for key, value in entry.items()
            if key != "frames"
        }
        for entry in document.get("entries", [])
    ]
    status = {
        pg_id: {key: str(value) for key, value in about.items()}
        for pg_id, about in document.get("pg_status", {}).items()
    }
    kept = {key: value for key, value in document.items() if key not in ("entries", "pg_status")}
    kept |= {"pg_status": status} if "pg_status" in document else {}
    return json.dumps(kept | ({"entries": entries} if entries else {}))


def write_dumps(folder: Path, dumps: list[Dump], *, in_json: bool = False, **how: Any) -> Path:
    """Write each dump to a file in `folder`, with torch's names and pickle protocol 2."""
    folder.mkdir(parents=True, exist_ok=True)
    for dump in dumps:
        document = dump.document(**how)
        path = folder / f"nccl_trace_rank_{dump.rank}"
        if in_json:
            path.with_suffix(".json").write_text(as_json(document))
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
            dump.barrier()
    return dumps


def problems(folder: Path) -> list[dict[str, Any]]:
    """The rows of the consistency check of the dumps in a folder."""
    frames = load(import_trace([folder]))
    return CATALOG["consistency"].function(frames).to_dict("records")


def faults(folder: Path) -> list[tuple[str, str]]:
    """The problem and the blamed ranks of each fault of the dumps in a folder."""
    return [(row["problem"], row["ranks"]) for row in problems(folder) if row["is_fault"]]
