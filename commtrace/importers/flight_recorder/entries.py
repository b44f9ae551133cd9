"""Contents of a flight-recorder dump, as values of known types within bounds.

    {"version": "2.10", "entries": [entry, ...],
     "pg_config": {name: {"name": ..., "desc": ..., "ranks": "[0, 1]"}},
     "pg_status": {pg_id: {"last_enqueued_collective": 7, ...}}}

An entry is a call of a rank on a group, or the end of several that were launched together. The
JSON form has no Python frames, 0 in place of an unknown time, and no `entries` if there are none.
Source: torch/csrc/distributed/c10d/TraceUtils.h of torch 2.4, FlightRecorderDetail.hpp of torch 2.8
and later, comms/torchcomms/hooks/fr/FlightRecorder.cpp of torchcomms.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from commtrace.errors import NotATraceError, OversizedTraceError
from commtrace.importers.flight_recorder.fields import (
    FIELDS,
    Frame,
    Shape,
    items,
    known_natural,
    natural,
    text,
)
from commtrace.importers.input_files import Document
from commtrace.schema import MAX_RANKS
from commtrace.torch_names import COALESCED, NOT_KNOWN, TRANSFERS, dtype_of, kind_of
from commtrace.tracefile.reading import is_int, parse_json

Version = tuple[int, int]


class Progress(NamedTuple):
    """Numbers of a group's last calls that were enqueued, started and completed; -1 if none."""

    enqueued: int
    started: int
    completed: int


class StatedGroup(NamedTuple):
    """Facts that a dump states of a group; `ranks` are empty if it lists none.

    A group with `size` but without ranks has numbered its ranks by itself, from 0.
    """

    description: str
    ranks: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a dump.

    Attributes:
        number: Number of the entry on its rank, from 0.
        collective_seq: Number of collectives of the group, this one included.
        p2p_seq: Number of launches of transfers, likewise.
        op_id: Number of operations of the group, with an entry or not; -1 if unknown.
        operation: Name without its backend, `send 0->1`.
        ends: Group ranks of a transfer: its own and the peer's; -1 if unknown.
        is_p2p: The dump says that it is a transfer; it does not for all transfers.
        splits: Elements of an all-to-all to and from each member; empty if they are not entered.
        complete_ns: Latest time at which the call can have ended; -1 if it has not.
        device_ns: Time for which a device ran the call; -1 if it was not measured.
        is_retired: The backend has forgotten the call: it has ended or failed.
    """

    number: int
    group: str
    description: str
    pg_id: int
    collective_seq: int
    p2p_seq: int
    op_id: int
    backend: str
    operation: str
    kind: str
    ends: tuple[int, int]
    is_p2p: bool
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    splits: tuple[tuple[int, ...], tuple[int, ...]]
    dtype: str
    issue_ns: int
    complete_ns: int
    device_ns: int
    is_retired: bool
    thread: int
    frames: tuple[Frame, ...] = field(repr=False)

    @property
    def is_transfer(self) -> bool:
        """It is a send or a recv."""
        return self.kind in TRANSFERS

    @property
    def is_closing(self) -> bool:
        """It has no tensors of its own, but ends a batch of calls launched together."""
        closes = self.operation in COALESCED or self.operation.lower().endswith("_coalesced")
        return closes and not self.inputs and not self.outputs

    @property
    def itemsize(self) -> int:
        """Bytes per element; -1 if unknown."""
        return dtype_of(self.dtype)[1] if self.dtype else NOT_KNOWN


@dataclass(frozen=True, slots=True)
class Dump:
    """The dump of a rank.

    Attributes:
        rank: Rank that the file states; -1 if none.
        progress: By `pg_id`, the numbers of a group's last calls that were enqueued, started and
            completed; -1 if none was.
    """

    path: Path
    rank: int
    version: Version
    entries: list[Entry]
    groups: dict[str, StatedGroup]
    progress: dict[int, Progress]

    @property
    def is_whole(self) -> bool:
        """It lists all calls since the first of its recorder."""
        numbers = [entry.number for entry in self.entries]
        is_reset = self.is_of_torchcomms and self.entries[0].collective_seq > 0
        return numbers == list(range(len(numbers))) and not is_reset

    @property
    def is_of_torchcomms(self) -> bool:
        """Written by torchcomms, which numbers all calls of a process in a single sequence."""
        offsets = {entry.collective_seq - entry.number for entry in self.entries}
        return len(offsets) == 1 and all(
            not entry.p2p_seq and not entry.is_p2p and entry.description in _BACKENDS
            for entry in self.entries
        )


# torchcomms describes a group by its backend.
_BACKENDS = frozenset(
    ["nccl", "ncclx", "rccl", "rcclx", "xccl", "mccl", "hccl", "gloo", "mpi", "dummy", "fake"]
)


def dump_of(document: Document) -> Dump:
    """Return the contents of a dump.

    Raises:
        NotATraceError: names the field with an impossible value.
        OversizedTraceError: the stacks are longer than in any program.
    """
    content = document.content
    version = _version(content.get("version", "2.10"), document)
    entries = content.get("entries") or []
    read = [_entry(each, f"entries[{n}]", document) for n, each in enumerate(entries)]
    _require_bounded_stacks(read, document)
    return Dump(
        path=document.path,
        rank=content["rank"] if is_int(content.get("rank")) else NOT_KNOWN,
        version=version,
        entries=read,
        groups=_groups(content.get("pg_config"), document),
        progress=_progress(content.get("pg_status")),
    )


def _require_bounded_stacks(entries: Sequence[Entry], document: Document) -> None:
    """Bound the texts of all distinct stacks, since few bytes of a pickle can stand for many."""
    stacks = {id(entry.frames): entry.frames for entry in entries}.values()
    size = sum(len(frame.filename) + len(frame.name) for stack in stacks for frame in stack)
    if size > _MOST_STACK_CHARACTERS:
        raise OversizedTraceError(
            f"cannot import {document.path}",
            place="entries.frames",
            found=f"stacks of {size:,} characters",
            why=f"the stacks of a dump have at most {_MOST_STACK_CHARACTERS:,}",
            attempt="dump it without stacks (`includeStackTraces=False`)",
        )


_MOST_STACK_CHARACTERS = 1 << 28


def _version(value: Any, document: Document) -> Version:
    found = _VERSION.fullmatch(value) if isinstance(value, str) else None
    if found is None or found[1] != "2":
        raise NotATraceError(
            f"cannot import {document.path}",
            place="version",
            found=_shown(value),
            why="supported are dumps of version 2, which torch 2.4 and later write",
            attempt="dump with another release of torch, or update commtrace",
        )
    return int(found[1]), int(found[2])


_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})", re.ASCII)


def _shown(value: Any) -> str:
    try:
        return reprlib.repr(value)[:60]
    except ValueError:  # Python formats no integer of more than some thousand digits
        return "a very large number"


def _unfit(document: Document, place: str, expected: str, value: Any) -> NotATraceError:
    return NotATraceError(
        f"cannot import {document.path}",
        place=place,
        found=f"{_shown(value)}, where {expected} is expected",
        why="its contents do not match a flight-recorder dump of version 2",
        attempt="dump it again, or copy it again",
    )


def _entry(values: Any, place: str, document: Document) -> Entry:
    if not isinstance(values, dict):
        raise _unfit(document, place, "an entry", values)
    found: dict[str, Any] = {}
    for name, (expected, read, default) in FIELDS.items():
        value = values.get(name)
        if value is None and default is not None:
            found[name] = default
            continue
        try:
            found[name] = read(value)
        except (KeyError, TypeError, ValueError):
            raise _unfit(document, f"{place}.{name}", expected, value) from None
    return _from_fields(found)


def _from_fields(found: Mapping[str, Any]) -> Entry:
    backend, colon, operation = found["profiling_name"].partition(":")
    backend, operation = (backend, operation) if colon else ("", backend)
    inputs = _tensors(found["input_sizes"], found["input_dtypes"])
    outputs = _tensors(found["output_sizes"], found["output_dtypes"])
    ends = _TRANSFER.fullmatch(operation)
    return Entry(
        number=found["record_id"],
        group=found["process_group"][0],
        description=found["process_group"][1],
        pg_id=found["pg_id"],
        collective_seq=found["collective_seq_id"],
        p2p_seq=found["p2p_seq_id"],
        op_id=found["op_id"],
        backend=backend,
        operation=operation,
        kind=kind_of(operation.split(" ")[0]),
        ends=(int(ends[1]), int(ends[2])) if ends else (NOT_KNOWN, NOT_KNOWN),
        is_p2p=found["is_p2p"],
        inputs=tuple(shape for shape, _ in inputs),
        outputs=tuple(shape for shape, _ in outputs),
        splits=(found["input_split_sizes"], found["output_split_sizes"]),
        dtype=next((dtype for _, dtype in inputs + outputs if dtype), ""),
        issue_ns=found["time_created_ns"],
        complete_ns=_end(
            found["time_created_ns"],
            found["time_discovered_started_ns"],
            found["time_discovered_completed_ns"],
            found["duration_ms"],
        ),
        device_ns=_on_device(
            found["time_discovered_started_ns"],
            found["time_discovered_completed_ns"],
            found["duration_ms"],
        ),
        is_retired=found["retired"],
        thread=found["thread_id"],
        frames=found["frames"],
    )


_TRANSFER = re.compile(r"(?:send|recv) (\d{1,9})(?:->|<-)(\d{1,9})", re.ASCII)
_NO_TYPES = frozenset({"Undefined", "UNKNOWN_SCALAR"})


def _tensors(shapes: Sequence[Shape], dtypes: Sequence[str]) -> list[tuple[Shape, str]]:
    """Return shape and type of each tensor that is defined.

    NCCL enters an undefined tensor for the list that only the root of a gather or scatter has.
    """
    types = [*dtypes, *[""] * len(shapes)]
    pairs = list(zip(shapes, types, strict=False))
    return [(shape, dtype) for shape, dtype in pairs if dtype not in _NO_TYPES or shape != (0,)]


def _end(issue_ns: int, started_ns: int, completed_ns: int, duration_ns: int) -> int:
    """Return the latest time at which a call can have ended; -1 if it has not.

    Start and end are noticed late, by a thread that looks from time to time, but the duration is
    measured. Without a noticed end, torchcomms measures the duration from the issue.
    """
    if completed_ns < 0:
        return issue_ns + duration_ns if duration_ns >= 0 else NOT_KNOWN
    if started_ns >= 0 and duration_ns >= 0:
        completed_ns = min(completed_ns, started_ns + duration_ns)
    return max(issue_ns, completed_ns)  # the clock may have been set back


def _on_device(started_ns: int, completed_ns: int, duration_ns: int) -> int:
    """Return the duration if a device measured it; -1 otherwise.

    If the events of the device have not both been noticed, torchcomms measures on the host, from
    the issue until it forgets the call.
    """
    return duration_ns if min(started_ns, completed_ns) >= 0 else NOT_KNOWN


def _groups(config: Any, document: Document) -> dict[str, StatedGroup]:
    if config is not None and not isinstance(config, dict):
        raise _unfit(document, "pg_config", "an object", config)
    return {name: _group(about, name, document) for name, about in (config or {}).items()}


def _group(about: Any, name: Any, document: Document) -> StatedGroup:
    if not (isinstance(about, dict) and isinstance(name, str)):
        raise _unfit(document, "pg_config", "an object of objects", {name: about})
    place = f"pg_config.{name[:40]}"
    try:
        ranks = _ranks(about.get("ranks", []))
        description = text(about.get("desc", ""))
    except (TypeError, ValueError, RecursionError):
        raise _unfit(document, place, f"a group of ranks below {MAX_RANKS:,}", about) from None
    counts_by_itself = isinstance(about.get("ranks"), str) and "[" not in about["ranks"]
    return StatedGroup(description, () if counts_by_itself else ranks, len(ranks) or NOT_KNOWN)


def _ranks(value: Any) -> tuple[int, ...]:
    """Return ranks, given as a list or as its text; the first torchcomms left out its brackets."""
    return _ranks_of_text(value) if isinstance(value, str) else _shared(_distinct_ranks(value))


# Every rank of a large job states the same ranks of its groups, which are kept once.
@lru_cache(maxsize=512)
def _shared(ranks: tuple[int, ...]) -> tuple[int, ...]:
    return ranks


@lru_cache(maxsize=512)
def _ranks_of_text(value: str) -> tuple[int, ...]:
    return _distinct_ranks(parse_json(value if "[" in value else f"[{value}]"))


def _distinct_ranks(value: Any) -> tuple[int, ...]:
    ranks = tuple(natural(each) for each in items(value))
    if any(rank >= MAX_RANKS for rank in ranks) or len(set(ranks)) < len(ranks):
        raise ValueError
    return ranks


def _progress(status: Any) -> dict[int, Progress]:
    """Return the progress of each group; in JSON, all numbers are strings."""
    return {
        known_natural(pg_id): Progress(
            *(known_natural(about.get(f"last_{name}_collective")) for name in Progress._fields)
        )
        for pg_id, about in (status if isinstance(status, dict) else {}).items()
        if isinstance(about, dict) and known_natural(pg_id) >= 0
    }
