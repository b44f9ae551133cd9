"""Importer of SQLite exports of Nsight Systems (`nsys export --type sqlite`), of one or more ranks.

    CUPTI_ACTIVITY_KIND_KERNEL    kernels     start end deviceId streamId correlationId globalPid
    CUPTI_ACTIVITY_KIND_RUNTIME   launches    start end globalTid correlationId nameId
    CUPTI_ACTIVITY_KIND_MEMCPY    copies, and _MEMSET
    CUPTI_ACTIVITY_KIND_SYNCHRONIZATION       start end deviceId contextId streamId correlationId
                                  waits       globalPid syncType eventId
    CUPTI_ACTIVITY_KIND_CUDA_EVENT            contextId streamId correlationId globalPid eventId
                                  recorded events
    NVTX_EVENTS                   ranges      start end globalTid text textId jsonText jsonTextId
    StringIds                     names       id value
    TARGET_INFO_SESSION_START_TIME            utcEpochNs
    MPI_RANKS                     ranks       globalPid rank

Rows become events of a profile: NCCL's ranges (`ncclAllReduce`) are annotations of calls, other
ranges are operators. Calls are then found as in traces of torch.profiler, and kernels belong to the
ranges in which they were launched. Tables and columns may be missing, since nsys writes them on
demand; a database is opened read-only, and only its tables are read.
Source: the SQLite schema reference of Nsight Systems; nvtx_payload_schemas.h of NCCL.
"""

from __future__ import annotations

import json
import sqlite3
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from commtrace.collective_table import KINDS
from commtrace.device_kernels import recognizer
from commtrace.errors import NotATraceError
from commtrace.importers.input_files import Document
from commtrace.importers.kineto.arguments import MESSAGE_BYTES
from commtrace.importers.kineto.importer import ReadFile, Unlocated, matched
from commtrace.importers.kineto.rows import Profile
from commtrace.importers.kineto.spans import gather
from commtrace.importers.rank_record import Imported
from commtrace.schema import MAX_RANKS, MOST_INSTANT_NS
from commtrace.settings import settings_of
from commtrace.torch_names import NOT_KNOWN, kind_of
from commtrace.tracefile.reading import Allowance, is_int, reading

_KERNELS, _RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
_COPIES = {
    "CUPTI_ACTIVITY_KIND_MEMCPY": "gpu_memcpy", "CUPTI_ACTIVITY_KIND_MEMSET": "gpu_memset",
}  # fmt: skip
_SYNCS, _EVENTS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
_SYNC_TYPES = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
"""Names that torch.profiler gives to the numbers of CUPTI."""
_RANGES, _STRINGS, _RANKS = "NVTX_EVENTS", "StringIds", "MPI_RANKS"
_START = "TARGET_INFO_SESSION_START_TIME"
_OF_NSYS = frozenset({_KERNELS, _RUNTIME, _RANGES})
_PUSHED = 59
"""Type of a range of a thread, which nest."""

_BYTES_PER_ROW = 600
_MOST_CHARACTERS = 4096
_STEPS = 100_000
"""Instructions of SQLite between two checks that a query is not longer than the file explains."""

_NO_LINES = Unlocated("source lines", "modules", "--cuda-event-trace was off")


@dataclass(slots=True)
class _ProfiledProcess:
    """Events of a process, as in a profile."""

    number: int
    events: list[dict[str, Any]] = field(default_factory=list)
    rank: int = NOT_KNOWN
    communicates: bool = False
    """It has a kernel or a range of NCCL; others are helpers, such as loaders of data."""


class _Database:
    """Tables of an export; values are checked by those who read them."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._connection = connection
        size = path.stat().st_size
        self._allowance = Allowance(f"cannot import {path}", size)
        self._left = 200 * size // _STEPS + 2000
        connection.text_factory = partial(str, encoding="utf-8", errors="replace")
        connection.set_progress_handler(self._is_too_long, _STEPS)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA query_only = ON")
        rows = connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'table' LIMIT 10000"
        )
        self.tables = {
            name
            for name, sql in rows
            if isinstance(name, str) and not str(sql).upper().startswith("CREATE VIRTUAL")
        }

    def _is_too_long(self) -> bool:
        self._left -= 1
        return self._left < 0

    def rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Yield the values of columns of a table; None for a column or a table that is missing."""
        if table not in self.tables:
            return
        known = {row[1] for row in self._connection.execute(f'PRAGMA table_info("{table}")')}
        asked = ", ".join(f'"{name}"' if name in known else "NULL" for name in columns)
        for row in self._connection.execute(f'SELECT {asked} FROM "{table}"'):
            self._allowance.take(_BYTES_PER_ROW, "rows")
            yield row


def read_exports(documents: Sequence[Document]) -> Imported:
    """Import exports, a process of them per rank, and list the missing information.

    Raises:
        NotATraceError: a database has no table of nsys, or no process that uses a device.
    """
    read: list[ReadFile] = []
    by_order = False
    for document in documents:
        with reading(f"cannot import {document.path}"):
            uri = f"file:{quote(str(document.path.resolve()))}?mode=ro&immutable=1"
            with closing(sqlite3.connect(uri, uri=True)) as connection:
                database = _Database(document.path, connection)
                processes, epoch_ns = _processes(database, document.path)
        of_file = [each for each in processes if each.communicates] or processes
        if len(of_file) > 1 and any(each.rank < 0 for each in of_file):
            by_order = True
            for place, process in enumerate(of_file):
                process.rank = len(read) + place
        read += [_read(document, process, epoch_ns) for process in of_file]
    imported = matched(read, [], _NO_LINES)
    if by_order:
        source = "processes are numbered in the order of their files and process ids"
        imported = replace(imported, ranks_from=source)
    return imported


def _read(document: Document, process: _ProfiledProcess, epoch_ns: int) -> ReadFile:
    found = gather(process.events, recognizer(settings_of().kernels))
    found.pids = {process.number}
    about = {
        "distributedInfo": {"rank": process.rank, "backend": "nccl"},
        "baseTimeNanoseconds": epoch_ns,
    }
    profile = Profile(document.path, found, about, len(process.events))
    rank = process.rank if process.rank >= 0 else max(document.rank_in_name, 0)
    return ReadFile(document, *profile.record(rank))


def _processes(database: _Database, path: Path) -> tuple[list[_ProfiledProcess], int]:
    """Return the processes with events, in order, and the start of the session in Unix ns."""
    if not _OF_NSYS & database.tables:
        names = ", ".join(sorted(database.tables)[:3])
        raise NotATraceError(
            f"cannot import {path}",
            found=f"a database of SQLite with {f'the tables {names}' if names else 'no table'}",
            why="an export of Nsight Systems has tables of kernels or of NVTX ranges",
            attempt="`nsys export --type sqlite report.nsys-rep`, and import that file",
        )
    strings = {
        number: text[:_MOST_CHARACTERS]
        for number, text in database.rows(_STRINGS, "id", "value")
        if is_int(number) and isinstance(text, str)
    }
    processes: dict[int, _ProfiledProcess] = {}
    for global_pid, event, communicates in _events(database, strings):
        number = global_pid >> 24 & 0xFFFFFF
        process = processes.setdefault(number, _ProfiledProcess(number))
        process.events.append(event)
        process.communicates |= communicates
    for global_pid, rank in database.rows(_RANKS, "globalPid", "rank"):
        if is_int(global_pid) and is_int(rank) and 0 <= rank < MAX_RANKS:
            process = processes.get(global_pid >> 24 & 0xFFFFFF)
            if process is not None:
                process.rank = rank
    if not processes:
        raise NotATraceError(
            f"cannot import {path}",
            found="an export of Nsight Systems without kernels and NVTX ranges",
            why="calls are found by them",
            attempt="`nsys profile --trace=cuda,nvtx`",
        )
    starts = [row[0] for row in database.rows(_START, "utcEpochNs")]
    epoch = starts[0] if starts and is_int(starts[0]) else 0
    ordered = [processes[number] for number in sorted(processes)]
    return ordered, epoch if 0 <= epoch <= MOST_INSTANT_NS >> 1 else 0


def _events(
    database: _Database, strings: Mapping[int, str]
) -> Iterator[tuple[int, dict[str, Any], bool]]:
    """Yield the process of each event, the event, and whether it belongs to a rank."""
    names = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
    for row in database.rows(
        _KERNELS, *names, "demangledName", "shortName", "gridX", "gridY", "gridZ"
    ):
        name = strings.get(row[6]) or strings.get(row[7]) or ""
        grid = list(row[8:11])
        yield from _of_device("kernel", name, row, {"grid": grid})
    for table, category in _COPIES.items():
        for row in database.rows(table, *names):
            yield from _of_device(category, category, row, {})
    for start, end, thread, correlation, name in database.rows(
        _RUNTIME, "start", "end", "globalTid", "correlationId", "nameId"
    ):
        args = {"correlation": correlation}
        yield from _event("cuda_runtime", strings.get(name, ""), start, end, thread, args)
    yield from _syncs(database)
    for start, end, thread, kind, text, number, payload, payload_id in database.rows(
        _RANGES, "start", "end", "globalTid", "eventType", "text", "textId", "jsonText",
        "jsonTextId",
    ):  # fmt: skip
        name = text if isinstance(text, str) else strings.get(number, "")
        if kind not in (_PUSHED, None) or not name:
            continue
        payload = payload if isinstance(payload, str) else strings.get(payload_id, "")
        category, name, args = _range(name[:_MOST_CHARACTERS], payload)
        for event in _event(category, name, start, end, thread, args):
            yield *event[:2], category == "user_annotation"


def _syncs(database: _Database) -> Iterator[tuple[int, dict[str, Any], bool]]:
    """Yield the waits as torch.profiler writes them, with the latest record of the event."""
    recorded: dict[tuple[Any, ...], list[tuple[int, Any]]] = {}
    for *event, correlation, stream in database.rows(
        _EVENTS, "globalPid", "contextId", "eventId", "correlationId", "streamId"
    ):
        if is_int(correlation):
            recorded.setdefault(tuple(event), []).append((correlation, stream))
    for of_event in recorded.values():
        of_event.sort(key=_correlation)
    for start, end, process, context, event, correlation, device, stream, kind in database.rows(
        *(_SYNCS, "start", "end", "globalPid", "contextId", "eventId", "correlationId"),
        *("deviceId", "streamId", "syncType"),
    ):
        args = {"correlation": correlation, "device": device, "stream": stream}
        of_event = recorded.get((process, context, event), ())
        place = bisect_left(of_event, correlation, key=_correlation) if is_int(correlation) else 0
        if place:
            record, of_stream = of_event[place - 1]
            args |= {"wait_on_stream": of_stream, "wait_on_cuda_event_record_corr_id": record}
        name = _SYNC_TYPES.get(kind, "") if is_int(kind) else ""
        yield from _event("cuda_sync", name, start, end, process, args)


def _correlation(record: tuple[int, Any]) -> int:
    return record[0]


def _of_device(
    category: str, name: str, row: Sequence[Any], args: Mapping[str, Any]
) -> Iterator[tuple[int, dict[str, Any], bool]]:
    start, end, device, stream, correlation, process = row[:6]
    own = {"device": device, "stream": stream, "correlation": correlation, **args}
    for global_pid, event, _ in _event(category, name, start, end, process, own):
        yield global_pid, event, True


def _event(
    category: str, name: str, start: Any, end: Any, of: Any, args: Mapping[str, Any]
) -> Iterator[tuple[int, dict[str, Any], bool]]:
    """Yield an event, in µs, if its times and its thread or process are numbers."""
    if is_int(start) and is_int(end) and is_int(of) and 0 <= start <= end < MOST_INSTANT_NS >> 1:
        event = {
            "ph": "X", "cat": category, "name": name, "tid": of & 0xFFFFFF,
            "ts": _microseconds(start), "dur": _microseconds(end - start), "args": args,
        }  # fmt: skip
        yield of, event, False


def _microseconds(ns: int) -> float | int:
    """Return µs, as an integer if the value is whole, which is exact at any size."""
    return ns // 1000 if ns % 1000 == 0 else ns / 1000


@lru_cache(maxsize=4096)
def _range(name: str, payload: str) -> tuple[str, str, Mapping[str, Any]]:
    """Return category, name and arguments of a range: NCCL's are annotations of calls.

    A group of calls ends with `ncclGroupEnd`, which launches them.
    """
    if name.startswith("nccl") and name[4:5].isupper():
        function = name.removeprefix("nccl")
        kind = "coalesced" if function == "GroupEnd" else kind_of(function)
        if kind == "coalesced" or kind in KINDS:
            return "user_annotation", f"nccl:{kind}", _payload(payload)
        return "cpu_op", name, {}
    if name.startswith("nccl:"):
        return "user_annotation", name, {}
    return "cpu_op", name.partition(", ")[0], {}  # `aten::mm, seq = 5` of torch's emit_nvtx


def _payload(text: str) -> dict[str, Any]:
    """Return the bytes and the communicator that NCCL attaches to its range."""
    try:
        values = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    if not isinstance(values, dict):
        return {}
    size = values.get("Message size [bytes]", values.get("bytes"))
    communicator = values.get("NCCL communicator ID")
    found: dict[str, Any] = {}
    if is_int(size) and 0 <= size < 1 << 50:
        found[MESSAGE_BYTES] = size
    if is_int(communicator):
        found["Process Group Name"] = f"{communicator & (1 << 64) - 1:#x}"
    return found
