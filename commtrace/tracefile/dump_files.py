"""Dumps of a rank's stacks and calls in flight: files beside its spool, and requests for them.

    RUN.comm/dump.request        {"id": "...", "ranks": [3]}, or null for all ranks
    RUN.comm/stacks.request      the same; ranks answer with events in their spools
    RUN.comm/rank-00003.dump     the last dump of the rank, as JSON; see `StackDump`
    RUN.comm/rank-00003.stacks   what a signal wrote, until the rank has turned it into a dump

A rank looks for requests once a second. Whoever requests needs no more than the folder.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from commtrace.atomic_write import atomic_write
from commtrace.schema import MAX_RANKS
from commtrace.tracefile.reading import Allowance, is_int, parse_json, read_file, reading, text_in

REQUEST = "dump.request"
STACKS_REQUEST = "stacks.request"
DUMP_SUFFIX = ".dump"
STACKS_SUFFIX = ".stacks"
MOST_THREADS = 200
MOST_FRAMES = 200
MOST_CALLS = 100
MOST_BYTES = 8 << 20
"""Bounds on what a dump holds, and on the size of its file."""

CALL_FIELDS = (
    "kind", "group", "seq", "issue_ns", "payload_bytes", "dtype", "peer", "module", "region",
    "source_file", "source_line", "source_function",
)  # fmt: skip
"""Columns of table `comm` that a dump has of a call in flight."""

StackFrame = tuple[str, int, str]
"""File, line and function."""


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """Stack of a thread, the innermost call last."""

    name: str
    native_id: int
    frames: tuple[StackFrame, ...]


@dataclass(frozen=True, slots=True)
class StackDump:
    """Stacks of all threads of a rank, the main thread first, and its calls in flight.

    Attributes:
        request: id of the request that it answers; empty after a signal.
        at_ns: when it was taken, in Unix ns.
        calls: calls in flight, by `CALL_FIELDS`.
        num_left_out: threads beyond `MOST_THREADS`.
    """

    rank: int
    host: str
    pid: int
    at_ns: int
    request: str
    threads: tuple[ThreadStack, ...]
    calls: tuple[Mapping[str, Any], ...]
    num_left_out: int = 0


def dump_path(spool: Path) -> Path:
    """Return the file of the dumps of the rank that writes a spool."""
    return spool.with_suffix(DUMP_SUFFIX)


def stacks_path(spool: Path) -> Path:
    """Return the file that a signal writes to."""
    return spool.with_suffix(STACKS_SUFFIX)


def write_dump(path: Path, dump: StackDump) -> None:
    """Write a dump atomically.

    Raises:
        OutputError: the file cannot be written.
    """
    with atomic_write(path) as unfinished:
        text = json.dumps(asdict(dump))
        unfinished.write_text(text, encoding="ascii")


def request_dumps(folder: Path, ranks: Collection[int] | None, name: str = REQUEST) -> str:
    """Ask ranks that record into a folder for a dump, all of them if None; return the id.

    Args:
        folder: the folder of the run.
        ranks: the ranks.
        name: name of the request, which determines the sort of the answer.

    Raises:
        OutputError: the request cannot be written.
    """
    number = f"{time.time_ns()}-{os.getpid()}"
    listed = None if ranks is None else sorted(ranks)
    with atomic_write(folder / name) as unfinished:
        unfinished.write_text(json.dumps({"id": number, "ranks": listed}), encoding="ascii")
    return number


def requested(path: Path, rank: int) -> str:
    """Return the id of the request in a file; empty if it is none, or does not ask this rank.

    Raises:
        TraceError: the file cannot be read.
    """
    summary = f"cannot read the request {path}"
    data = read_file(path, summary)
    with reading(summary):
        request = parse_json(text_in(data), Allowance(summary, len(data)))
        number, ranks = request["id"], request["ranks"]
        is_asked = ranks is None or rank in ranks
        return number if is_asked and isinstance(number, str) and len(number) < 100 else ""


def read_dump(path: Path) -> StackDump:
    """Read a dump.

    Raises:
        TraceError: the file cannot be read, or is no dump.
    """
    summary = f"cannot read the dump {path}"
    data = read_file(path, summary)
    with reading(summary):
        if len(data) > MOST_BYTES:
            raise ValueError(f"{len(data):,} bytes")
        found = parse_json(text_in(data), Allowance(summary, len(data)))
        return StackDump(
            rank=_number(found["rank"], MAX_RANKS),
            host=_text(found["host"]),
            pid=_number(found["pid"]),
            at_ns=_number(found["at_ns"]),
            request=_text(found["request"]),
            threads=tuple(_thread(each) for each in found["threads"][:MOST_THREADS]),
            calls=tuple(_call(each) for each in found["calls"][:MOST_CALLS]),
            num_left_out=_number(found["num_left_out"]),
        )


def _thread(found: Any) -> ThreadStack:
    frames = tuple(
        (_text(file), _number(line), _text(function))
        for file, line, function in found["frames"][:MOST_FRAMES]
    )
    return ThreadStack(_text(found["name"]), _number(found["native_id"]), frames)


def _call(found: Any) -> dict[str, Any]:
    call = {name: found[name] for name in CALL_FIELDS}
    if not all(isinstance(value, str) or is_int(value) for value in call.values()):
        raise ValueError("a call with other values than texts and integers")
    return call


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a value that is not a text")
    return value


def _number(value: Any, most: int = 1 << 63) -> int:
    if not is_int(value) or value >= most:
        raise ValueError("a value that is not an integer in range")
    return value
