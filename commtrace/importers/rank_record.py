"""Contents of a rank's file, in the form in which ranks are joined into a trace.

An imported file becomes a `Spool`, as if the rank had been recorded here. Merging, distinguishing
groups of the same name and aligning clocks then work as for recordings. Missing numbers of
collectives are assigned by order, if all members of the group made matching calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from commtrace.errors import TraceError
from commtrace.event import GroupRow
from commtrace.importers.device_times.timings import Timings
from commtrace.importers.input_files import Document
from commtrace.schema import MAX_RANKS, TABLES
from commtrace.torch_names import mesh_axis_of
from commtrace.tracefile.facts import require_spool_facts
from commtrace.tracefile.joining.split import CLOCK_ERROR
from commtrace.tracefile.spool import Spool
from commtrace.tracefile.trace import StringTable, table_of


@dataclass(slots=True)
class RankRecord:
    """A rank: rows of the tables and facts about it; groups by the names it uses.

    Operators, kernels and waits are many, and are tables at once, with their strings in `strings`.

    Attributes:
        backend: The backend of groups whose own is unknown.
        messages: Elements sent and received, and bytes of each, of calls whose payload depends on
            the size of a group that this rank does not know; by `id` of the call.
        is_aligned: Times of all ranks are on one clock already, but for `clock_error_ns`.
    """

    rank: int
    path: Path
    comm: list[Any] = field(default_factory=list)
    ops: Mapping[str, Any] = field(default_factory=dict)
    kernels: Mapping[str, Any] = field(default_factory=dict)
    syncs: Mapping[str, Any] = field(default_factory=dict)
    strings: StringTable = field(default_factory=lambda: StringTable([""]))
    steps: list[Any] = field(default_factory=list)
    communicators: list[Any] = field(default_factory=list)
    later_waits: list[Any] = field(default_factory=list)
    groups: dict[str, Any] = field(default_factory=dict)
    messages: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    backend: str = ""
    host: str = ""
    pid: int = -1
    device: str = ""
    start_ns: int = -1
    end_ns: int = -1
    world_size: int = 1
    is_aligned: bool = False
    clock_error_ns: int = 0

    def spool(self) -> Spool:
        """Return the record as a spool."""
        rows = {
            "comm": self.comm,
            "steps": self.steps,
            "communicators": self.communicators,
            "later_waits": self.later_waits,
            "groups": list(self.groups.values()),
        }
        tables = {name: table_of(name, rows.get(name, ()), self.strings) for name in TABLES}
        whole = {"ops": self.ops, "kernels": self.kernels, "syncs": self.syncs}
        tables |= {name: dict(table) for name, table in whole.items() if table}
        facts = {
            "rank": self.rank,
            "host": self.host,
            "pid": self.pid,
            "boot": "" if self.is_aligned else self.host,
            "epoch_ns": 0,
            "device": self.device,
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
            "complete": False,
            "sees_completion": True,
            "run": {"world_size": self.world_size},
        }
        if self.is_aligned:
            facts[CLOCK_ERROR] = self.clock_error_ns
        require_spool_facts(facts, f"cannot import {self.path}")
        return Spool(facts, tables, is_truncated=False, path=self.path)


@dataclass(frozen=True, slots=True)
class Imported:
    """Contents of the files of a tool by rank, and statements about them.

    Attributes:
        records: The contents, by rank.
        ranks_from: The source of the ranks.
        lacks: Missing information.
        kernels: Number of communication kernels by the way in which their calls were found.
        facts: Further facts of the run.
        timings: Function that returns what can be joined to the calls of a recording.
    """

    records: list[RankRecord]
    ranks_from: str
    lacks: list[str]
    kernels: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    timings: Callable[[], Timings] | None = None


@dataclass(frozen=True, slots=True)
class Ranks:
    """The rank of each file, and in a clause how the ranks were determined."""

    numbers: list[int]
    source: str


def ranks_of(documents: Sequence[Document], stated: Sequence[int]) -> Ranks:
    """Return each file's rank: as stated in it, else in its name; 0 for a single file with neither.

    Raises:
        TraceError: a rank is unknown, or two files are of the same rank.
    """
    found: dict[int, Path] = {}
    sources: dict[str, None] = {}
    for document, own in zip(documents, stated, strict=True):
        named = document.rank_in_name
        rank = own if own >= 0 else named
        sources[_BY_FILE if own >= 0 else _BY_NAME] = None
        if rank < 0 and len(documents) == 1:
            rank, sources = 0, {_BY_NOTHING: None}
        if 0 <= own != named >= 0:
            sources[f"{document.path.name} states rank {own}, unlike its name"] = None
        if not 0 <= rank < MAX_RANKS:
            raise TraceError(
                f"cannot import {document.path}",
                found="no rank, neither in the file nor in its name"
                if rank < 0
                else f"rank {rank}, which is not below {MAX_RANKS}",
                why="each of several files must state its rank; dates and process ids are not "
                "ranks",
                attempt="name the files after their ranks, `rank0`, `rank1`, ...",
            )
        if rank in found:
            raise TraceError(
                "cannot import the files as one trace",
                found=f"two of rank {rank}: {found[rank]} and {document.path}",
                why="each rank has one file",
                attempt="import one of them, or rename it",
            )
        found[rank] = document.path
    return Ranks(list(found), "; ".join(sources))


_BY_FILE = "read from the files"
_BY_NAME = "read from the file names"
_BY_NOTHING = "a single file without a rank is imported as rank 0"


def non_members(records: Sequence[RankRecord]) -> list[str]:
    """Return sentences on ranks that called on groups without being members."""
    found = []
    for record in records:
        for name in dict.fromkeys(call.group for call in record.comm):
            row = record.groups.get(name)
            members = members_of(row) if row is not None else ()
            if members and record.rank not in members:
                found.append(
                    f"{record.path.name} was imported as rank {record.rank}, but has calls on "
                    f"group {name}, which does not contain that rank"
                )
                break
    return found


def group_row(name: str, description: str, ranks: Sequence[int], backend: str) -> Any:
    """Return the row of a group; empty `ranks` mean unknown ranks."""
    return GroupRow(
        name=name,
        description="" if description == "undefined" else description,  # torch's word for none
        ranks=_text_of(tuple(ranks)),
        size=len(ranks) or -1,
        mesh_axis=mesh_axis_of(description),
        backend=backend,
    )


# Every rank of a large job states the same groups.
@lru_cache(maxsize=512)
def _text_of(ranks: tuple[int, ...]) -> str:
    return ",".join(map(str, ranks))


def members_of(row: Any) -> tuple[int, ...]:
    """Return the ranks in a group's row."""
    return _ranks(row.ranks) if row.ranks else ()


@lru_cache(maxsize=512)
def _ranks(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))  # asked for each call of a group
