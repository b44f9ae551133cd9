"""Lines of NCCL Inspector's JSON output, as values of known types within bounds.

    {"header": {"id": "0x7f8c", "rank": 2, "n_ranks": 8, "nnodes": 1},
     "metadata": {"dump_timestamp_us": ..., "hostname": "node0", "pid": 4711, ...},
     "coll_perf": {"coll": "AllReduce", "coll_sn": 1407, "coll_msg_size_bytes": 4096,
                   "coll_exec_time_us": 61, "coll_timing_source": "kernel_gpu", ...}}

A line is a completed operation of a rank in a communicator. From format v4.3, header and metadata
are in the line of `dump_stats` alone, followed by the operations of that dump. Any other line is
counted and left out: a killed process has written only a part of its last line.
Source: NVIDIA/nccl, ext-profiler/inspector of 2.28, plugins/profiler/inspector of 2.29 and later.
"""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from commtrace.errors import NotATraceError
from commtrace.importers.input_files import Document
from commtrace.schema import MAX_RANKS, MOST_INSTANT_NS
from commtrace.torch_names import NOT_KNOWN
from commtrace.tracefile.reading import Allowance

NS_PER_US = 1000


class _Fields(NamedTuple):
    """Names of an operation's fields."""

    function: str
    number: str
    peer: str
    size: str
    lasts: str
    source: str
    busbw: str
    algorithm: str
    protocol: str
    launch: str


_OPERATIONS = {
    kind: _Fields(
        prefix,
        f"{prefix}_sn",
        peer,
        f"{prefix}_msg_size_bytes",
        f"{prefix}_exec_time_us",
        f"{prefix}_timing_source",
        f"{prefix}_busbw_gbs",
        f"{prefix}_algo",
        f"{prefix}_proto",
        f"{prefix}_start_ts",
    )
    for kind, prefix, peer in (("coll_perf", "coll", ""), ("p2p_perf", "p2p", "p2p_peer"))
}
_RECORDS = {"coll_perf": "coll_records", "p2p_perf": "p2p_records", "proxy_trace": "proxy_records"}
"""Records that follow a line of `dump_stats`, and their number there."""

_ON_HOST = frozenset({"collective_cpu", "unknown"})
"""Values of `coll_timing_source` for times that are not a kernel's."""

_MOST_US = (1 << 58) // NS_PER_US
_MOST_RATE = 1e9
_MOST_BYTES = 1 << 50
_MOST_CHARACTERS = 256
_BYTES_PER_SAMPLE = 600


class Communicator(NamedTuple):
    """A communicator as one of its ranks states it."""

    name: str
    size: int
    rank: int
    description: str


class Sample(NamedTuple):
    """An operation; unknown numbers are -1.

    Attributes:
        communicator: Its place in `InspectorFile.communicators`.
        number: Number of the operation within its function, from 0.
        size: Bytes of the message, as NCCL's function is given it.
        lasts_ns: Time of its kernel.
        busbw: Bus bandwidth in GB/s, as the line states it; 0 if it does not.
        dumped_ns: Time at which the line was written.
        launch_ns: Start of the launch on the host; only in verbose lines, as the following.
        start_ns: First start of a channel.
        end_ns: Last end of a channel.
    """

    communicator: int
    function: str
    number: int
    peer: int
    size: int
    lasts_ns: int
    busbw: float
    algorithm: str
    protocol: str
    dumped_ns: int
    launch_ns: int = NOT_KNOWN
    start_ns: int = NOT_KNOWN
    end_ns: int = NOT_KNOWN
    channels: int = NOT_KNOWN


@dataclass(slots=True)
class InspectorFile:
    """Contents of the file of a process.

    Attributes:
        left_out: Number of lines that could not be read, by reason.
        dropped: Operations that Inspector says it has not written, by communicator.
    """

    path: Path
    host: str = ""
    pid: int = NOT_KNOWN
    communicators: list[Communicator] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    dropped: dict[int, int] = field(default_factory=dict)


# The decoder of `json.loads`, without its search for white space, which takes as long.
_scan = json.JSONDecoder().scan_once  # pyright: ignore[reportAttributeAccessIssue]


class _UnfitError(ValueError):
    """A line that is left out, with the reason."""


def inspector_file_of(document: Document) -> InspectorFile:
    """Return the operations in a file.

    Raises:
        NotATraceError: no line is an operation.
        OversizedTraceError: the file has more lines than may be held.
    """
    data: bytes = document.content
    summary = f"cannot import {document.path}"
    num_lines = data.count(b"\n")
    taken = num_lines * _BYTES_PER_SAMPLE
    Allowance(summary, len(data)).take(taken, f"{num_lines:,} lines")
    reader = _Reader(InspectorFile(document.path))
    for line in io.BytesIO(data):
        if not line.isspace():
            reader.read(line)
    found = reader.found
    if not found.samples and not found.communicators:
        raise NotATraceError(
            summary,
            found="; ".join(f"{text}: {num:,} lines" for text, num in found.left_out.items()),
            why="a line of NCCL Inspector has a header with communicator and rank, metadata, and "
            "an operation",
            attempt="pass the files <host>-pid<pid>.log of NCCL_INSPECTOR_DUMP_DIR",
        )
    return found


class _Reader:
    """Reads lines in order; `found` is their contents."""

    def __init__(self, found: InspectorFile) -> None:
        self.found = found
        self._places: dict[Any, int] = {}
        self._place = NOT_KNOWN
        self._dumped_ns = NOT_KNOWN
        self._remaining: dict[str, int] = {}

    def read(self, line: bytes) -> None:
        try:
            text = line.decode()
            record, end = _scan(text, len(text) - len(text.lstrip()))
            if end < len(text) and not text[end:].isspace():
                raise ValueError(text[end:])
        except (ValueError, RecursionError, StopIteration):
            is_cut = not line.endswith(b"\n")
            reason = "a last line that is cut off" if is_cut else "lines that are not JSON"
            self.found.left_out[reason] += 1
            return
        try:
            self._record(record)
        except _UnfitError as error:
            self.found.left_out[str(error)] += 1

    def _record(self, record: Any) -> None:
        if not isinstance(record, dict):
            raise _UnfitError("lines that are not objects")
        if "dump_stats" in record:
            self._begin(record)
            return
        for kind in _RECORDS:
            if kind in record:
                break
        else:
            raise _UnfitError("lines without an operation")
        if "header" in record:
            place, dumped_ns = self._context(record)
        else:
            place, dumped_ns = self._place, self._dumped_ns
            if self._remaining.get(kind, 0) <= 0:
                raise _UnfitError("operations without the header of their dump")
            self._remaining[kind] -= 1
        if kind not in _OPERATIONS:
            self.found.left_out["steps of proxies (proxy_trace)"] += 1
            return
        sample = _sample(record[kind], _OPERATIONS[kind], place, dumped_ns)
        size = self.found.communicators[place].size
        if sample.peer >= size:
            raise _UnfitError("transfers with a peer beyond the communicator")
        self.found.samples.append(sample)

    def _begin(self, record: Mapping[str, Any]) -> None:
        self._remaining = {}
        stats = record["dump_stats"]
        if not isinstance(stats, dict):
            raise _UnfitError("dump_stats that is not an object")
        self._place, self._dumped_ns = self._context(record)
        self._remaining = {kind: max(_natural(stats.get(of)), 0) for kind, of in _RECORDS.items()}
        dropped = [_natural(stats.get(f"{kind}_dropped_total")) for kind in ("coll", "p2p")]
        self.found.dropped[self._place] = sum(max(each, 0) for each in dropped)

    def _context(self, record: Mapping[str, Any]) -> tuple[int, int]:
        """Return the place of a line's communicator, and the time at which it was written."""
        header, metadata = record["header"], record.get("metadata")
        if not isinstance(header, dict) or not isinstance(metadata, dict):
            raise _UnfitError("lines whose header or metadata is not an object")
        key = header.get("id"), header.get("rank"), header.get("n_ranks")
        try:
            place = self._places.get(key)
        except TypeError:
            raise _UnfitError("headers with an invalid id, rank or size") from None
        if place is None:
            place = self._places[key] = len(self.found.communicators)
            self.found.communicators.append(_communicator(header))
            self._process(metadata)
        elif type(key[1]) is bool or type(key[1]) is float:  # equal to an integer
            raise _UnfitError("headers with an invalid id, rank or size")
        return place, _instant(metadata.get("dump_timestamp_us"))

    def _process(self, metadata: Mapping[str, Any]) -> None:
        host, pid = metadata.get("hostname"), _natural(metadata.get("pid"))
        host = host if isinstance(host, str) and len(host) <= _MOST_CHARACTERS else ""
        found = self.found
        if found.pid == NOT_KNOWN:
            found.host, found.pid = host, pid
        elif (found.host, found.pid) != (host, pid):
            raise _UnfitError("lines of another process than the first")


def _communicator(header: Mapping[str, Any]) -> Communicator:
    name, rank, size = header.get("id"), header.get("rank"), header.get("n_ranks")
    is_known = isinstance(name, str) and _ID.fullmatch(name) is not None
    if not is_known or type(rank) is not int or type(size) is not int:
        raise _UnfitError("headers with an invalid id, rank or size")
    if not 0 <= rank < size <= MAX_RANKS:
        raise _UnfitError("headers of a rank that is not below the size of its communicator")
    about = header.get("comm_name")
    is_named = isinstance(about, str) and about != "unknown" and len(about) <= _MOST_CHARACTERS
    return Communicator(str(name), size, rank, str(about) if is_named else "")


_ID = re.compile(r"0x[0-9a-fA-F]{1,16}", re.ASCII)


def _sample(values: Any, fields: _Fields, place: int, dumped_ns: int) -> Sample:
    if not isinstance(values, dict):
        raise _UnfitError("operations that are not objects")
    get = values.get
    function, number = get(fields.function), _natural(get(fields.number))
    if not isinstance(function, str) or len(function) > _MOST_CHARACTERS or number < 0:
        raise _UnfitError("operations without a function or a number")
    micros, size = _natural(get(fields.lasts)), _natural(get(fields.size))
    source = get(fields.source)
    is_of_kernel = not (isinstance(source, str) and source in _ON_HOST)
    return Sample(
        place,
        function,
        number,
        _natural(get(fields.peer)) if fields.peer else NOT_KNOWN,
        size if size < _MOST_BYTES else NOT_KNOWN,
        micros * NS_PER_US if is_of_kernel and 0 < micros <= _MOST_US else NOT_KNOWN,
        _rate(get(fields.busbw)),
        _word(get(fields.algorithm)),
        _word(get(fields.protocol)),
        dumped_ns,
        *_times(get("event_trace_ts"), fields),
    )


def _times(trace: Any, fields: _Fields) -> Sequence[int]:
    """Return launch, first start, last end, and the number of channels."""
    if not isinstance(trace, dict) or not isinstance(trace.get("kernel_events"), list):
        return ()
    channels = [each for each in trace["kernel_events"] if isinstance(each, dict)]
    starts = [_instant(each.get("kernel_start_ts")) for each in channels]
    ends = [_instant(each.get("kernel_stop_ts")) for each in channels]
    launch = _instant(trace.get(fields.launch))
    if not channels or min(*starts, *ends) < 0 or max(starts) > max(ends):
        return launch, NOT_KNOWN, NOT_KNOWN, NOT_KNOWN
    return launch, min(starts), max(ends), len(channels)


def _natural(value: Any) -> int:
    """Return an integer from 0 to 2^62 - 1; -1 for anything else."""
    return value if type(value) is int and 0 <= value <= MOST_INSTANT_NS else NOT_KNOWN


def _instant(value: Any) -> int:
    """Return a time in ns that is given in µs; -1 for 0 and anything else."""
    is_time = type(value) is int and 0 < value <= MOST_INSTANT_NS // NS_PER_US
    return value * NS_PER_US if is_time else NOT_KNOWN


def _rate(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and 0 < value < _MOST_RATE else 0.0


def _word(value: Any) -> str:
    is_word = isinstance(value, str) and len(value) <= _MOST_CHARACTERS and value != "unknown"
    return value if is_word else ""
