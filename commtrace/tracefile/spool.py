"""Writer and reader of the spool, the file that a rank writes while it records.

A spool begins with the line `commtrace-spool 4`, where 4 is the format version. Batches follow,
each appended in a single write:

    length   4 bytes, little-endian    of the payload
    crc32    4 bytes                   of the payload
    payload                            deflated: length of the head (4 bytes), head, column data

The head is JSON: `facts` to add to those known so far, new `strings`, and for each table its number
of rows and the description of each column (see `encoding`) with the length of its data.

Calls and operators are many but few differ. Each is written as numbers only; the number
`site` identifies its call site, a row of a pseudo-table with all other columns. Call sites are
numbered through the file, like strings.

A batch with a wrong length or checksum is the truncated tail left by a killed process: it is
dropped, and everything before it counts. Each batch lists all calls in progress as `outstanding`;
only the calls in the last batch's list count, as calls without a known end. Steps that were found
rather than marked are rows of `found_steps`, with their source. The reader is in `spool_reading`.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import struct
import zlib
from array import array
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from commtrace.schema import EVENT_TABLES, FORMAT_VERSION, INSTANT, TABLES, Column
from commtrace.tracefile.encoding import (
    ALL_UNKNOWN,
    encode_floats,
    encode_ints,
    encode_planes,
    is_not_known,
    packed_ints,
)
from commtrace.tracefile.trace import ColumnValues, StringTable

SPOOL_SUFFIX = ".spool"
DONE_SUFFIX = ".done"
"""Suffix of the mark beside the spool of a rank that closed its recording properly."""

OUTSTANDING = "outstanding"
"""Pseudo-table: calls in progress when the batch was written, as rows of table `comm`."""

FOUND_STEPS = "found_steps"
"""Pseudo-table: steps found rather than marked, as rows of table `steps` after their source."""

STEP_SOURCES = ("optimizer", "profiler", "scheduler")
"""Sources of found steps, in order of precedence."""

TAKEN_FOR = "taken_for"
"""Name of the fact that lists the ranks that the process took itself for before."""

SMALL_RANK_TABLES = (
    *("steps", "host_events", "pipeline_actions", "later_waits", "communicators", "removed_calls"),
)
"""Tables with few rows of each rank, which are read as a whole."""

RANK_TABLES = (*EVENT_TABLES, *SMALL_RANK_TABLES)
"""Tables whose rows belong to a single rank each."""

SITE = Column("site", int, "", "number of the call site in this file, from 0")
OF_EACH: dict[str, tuple[str, ...]] = {
    "comm": (
        "id", "seq", "issue_ns", "call_ns", "blocked_ns", "complete_ns", "step", "module_call",
        "op_id", "sent_id", "data_ready_ns", "result_used_ns", "micro_batch",
        "used_shard", "run_delay_ns", "tag", "wait_begin_ns", "first_wait_ns", "data_op_id",
        "data_call_id", "used_by_op_id", "used_by_call_id",
    ),
    "ops": ("id", "parent", "start_ns", "duration_ns", "step", "module_call"),
}  # fmt: skip
"""Names of the columns that differ between alike events."""

NUMBERS = {
    table: (*[column for column in TABLES[table] if column.name in names], SITE)
    for table, names in OF_EACH.items()
}
"""Columns of the rows of numbers, in order."""

SITES = {
    table: tuple([column for column in TABLES[table] if column.name not in names])
    for table, names in OF_EACH.items()
}
"""Columns that alike events share, in order: their call sites."""

FIRST_WORD = b"commtrace-spool"
FIRST_LINE = b"%s %d\n" % (FIRST_WORD, FORMAT_VERSION)
FIRST_LINES = tuple(b"%s %d\n" % (FIRST_WORD, n + 1) for n in range(FORMAT_VERSION))
BATCH = struct.Struct("<II")
LENGTH = struct.Struct("<I")
# The recorded program pays for the compression.
_FASTEST = 1
_NUM_DROPPABLE = 64
"""Number of the latest batches that give way to the last facts on a full disk."""


def first_line_of(data: bytes) -> bytes:
    """Return the first line of a spool of any version, as long as it is; empty if it has none."""
    return next((line for line in FIRST_LINES if data.startswith(line)), b"")


def numbers_of(table: str) -> str:
    """Return the name of the pseudo-table with the numbers of a table's events."""
    return f"{table}.numbers"


def sites_of(table: str) -> str:
    """Return the name of the pseudo-table with the call sites of a table's events."""
    return f"{table}.sites"


SPOOL_TABLES = {
    **TABLES,
    OUTSTANDING: TABLES["comm"],
    FOUND_STEPS: (Column("source", str, "", "one of STEP_SOURCES"), *TABLES["steps"]),
    **{numbers_of(table): columns for table, columns in NUMBERS.items()},
    **{sites_of(table): columns for table, columns in SITES.items()},
}

Rows = Sequence[tuple[Any, ...]]
Numbers = Sequence[int]
"""Rows of an all-integer table, flattened."""


def spool_name(rank: int) -> str:
    """Return the file name of a rank's spool.

    >>> spool_name(3)
    'rank-00003.spool'
    """
    return f"rank-{rank:05d}{SPOOL_SUFFIX}"


class SpoolWriter:
    """Appends batches to a stream; not thread-safe."""

    def __init__(self, stream: BinaryIO, facts: Mapping[str, Any]) -> None:
        self._stream = stream
        self._strings = StringTable([""])
        self._num_written = 1
        self._end = 0
        self._batches: deque[tuple[int, dict[str, int]]] = deque(maxlen=_NUM_DROPPABLE)
        self.write({}, facts)

    def write(
        self,
        tables: Mapping[str, Rows],
        facts: Mapping[str, Any] | None = None,
        numbers: Mapping[str, Numbers] | None = None,
    ) -> None:
        """Append rows of any tables, facts, and the numbers of events, as a batch.

        The batch is in the file on return.

        Raises:
            OSError: writing failed; the file is unchanged, and another batch may be tried.
        """
        blobs: list[bytes] = []
        heads = {name: self._encode(name, rows, blobs) for name, rows in tables.items() if rows}
        for table, flat in (numbers or {}).items():
            if flat:
                name = numbers_of(table)
                heads[name] = _encode_numbers(SPOOL_TABLES[name], packed_ints(flat), blobs)
        head: dict[str, Any] = {"strings": self._strings.strings[self._num_written :]}
        head["facts"] = dict(facts or {})
        head["tables"] = heads
        encoded = json.dumps(head, separators=(",", ":")).encode()
        payload = zlib.compress(b"".join([LENGTH.pack(len(encoded)), encoded, *blobs]), _FASTEST)
        batch = BATCH.pack(len(payload), zlib.crc32(payload)) + payload
        begin = self._end
        self._append(batch if begin else FIRST_LINE + batch)
        if begin:
            nums = {name: len(flat) // len(NUMBERS[name]) for name, flat in (numbers or {}).items()}
            self._batches.append((begin, nums))
        # Not before the batch is in the file: strings of a lost batch go with the next one.
        self._num_written = len(self._strings.strings)

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        return self._end

    def write_instead(self, facts: Callable[[Mapping[str, int]], Mapping[str, Any]]) -> None:
        """Write last facts over the last batches, whose space the file has, on a full disk.

        Args:
            facts: returns the facts, given the numbers of rows by table that are lost for them.

        Raises:
            OSError: they could not be written over any of these batches.
        """
        lost: Counter[str] = Counter()
        while True:
            if not self._batches:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._end, nums = self._batches.pop()
            lost.update(nums)
            self._stream.seek(self._end)
            with contextlib.suppress(OSError):
                self.write({}, facts(lost))
                self._stream.truncate(self._end)
                return

    def contents(self) -> list[bytes]:
        """Return the contents of the file, as the only segment."""
        return [contents_of(self._stream)]

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def _append(self, data: bytes) -> None:
        """Append all of `data` or nothing: a partial write, as on a full disk, is truncated."""
        try:
            rest = memoryview(data)
            # A raw stream may write a part only.
            while rest:
                rest = rest[self._stream.write(rest) :]
            self._stream.flush()
        except OSError:
            with contextlib.suppress(OSError):
                self._stream.seek(self._end)
                self._stream.truncate()
            raise
        self._end += len(data)

    def _encode(self, table: str, rows: Rows, blobs: list[bytes]) -> dict[str, Any]:
        columns = {}
        for column, values in zip(SPOOL_TABLES[table], zip(*rows, strict=True), strict=True):
            if column.type is str:
                description, data = encode_ints(self._strings.codes(values))
            elif column.type is float:
                description, data = encode_floats(values)
            else:
                description, data = encode_ints(values)
            if is_not_known(column, description):
                continue
            if data:
                blobs.append(data)
                description["bytes"] = len(data)
            columns[column.name] = description
        return {"rows": len(rows), "columns": columns}


def contents_of(stream: BinaryIO) -> bytes:
    """Return the contents of a stream, and continue at its end."""
    stream.seek(0)
    try:
        return stream.read()
    finally:
        stream.seek(0, io.SEEK_END)


def _encode_numbers(
    columns: Sequence[Column], flat: array[int], blobs: list[bytes]
) -> dict[str, Any]:
    described, width = {}, len(columns)
    for place, column in enumerate(columns):
        description, data = encode_planes(flat[place::width])
        if description == ALL_UNKNOWN:
            continue
        blobs.append(data)
        described[column.name] = {**description, "bytes": len(data)}
    return {"rows": len(flat) // width, "columns": described}


@dataclass(frozen=True, slots=True)
class Spool:
    """Recording of a rank.

    Attributes:
        facts: facts of all batches merged.
        tables: column values by table and column.
        is_truncated: the last batch was cut off.
        path: the file, None in memory.
        parts: the files of its segments, if it has several.
    """

    facts: dict[str, Any]
    tables: dict[str, dict[str, ColumnValues]]
    is_truncated: bool
    path: Path | None = None
    parts: tuple[Path, ...] = ()

    @property
    def num_calls(self) -> int:
        """Number of rows of table `comm`."""
        return len(self.tables["comm"]["rank"])

    @property
    def last_ns(self) -> int:
        """Time of the last event, or of the beginning."""
        import numpy as np  # imported late, since only readers ask

        instants = [
            int(np.asarray(self.tables[name][column.name]).max())
            for name in RANK_TABLES
            for column in TABLES[name]
            if column.unit == INSTANT and len(self.tables[name].get(column.name, ()))
        ]
        return max([self.facts["start_ns"], *instants])
