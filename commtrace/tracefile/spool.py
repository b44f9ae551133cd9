"""Writer and reader of the spool, the file that a rank writes while it records.

A spool begins with the line `commtrace-spool 4`, where 4 is the format version. Batches follow,
each appended in one write:

    length   4 bytes, little-endian    of the payload
    crc32    4 bytes                   of the payload
    payload                            deflated: length of the head (4 bytes), head, column data

The head is JSON: `facts` to add to those known so far, new `strings`, and for each table its number
of rows and the description of each column (see `encoding`) with the length of its data.

Calls and operators are many but few differ. Each is written as numbers only, one of which
identifies its call site (`site`), a row of a pseudo-table with all other columns. Call sites are
numbered through the file, like strings.

A batch with a wrong length or checksum is the truncated tail left by a killed process: it is
dropped, and everything before it counts. Each batch lists all calls in progress as `outstanding`;
those of the last batch count, as calls without a known end. Steps that were found rather than
marked are rows of `found_steps`, with their source.

The file exceeds the usual length, to keep the writer and the reader of the layout together.
"""

from __future__ import annotations

import contextlib
import io
import json
import struct
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from commtrace.errors import EmptyTraceError, NewerTraceError, NotATraceError, UnbegunSpoolError
from commtrace.schema import FORMAT_VERSION, TABLES, Column
from commtrace.tracefile.encoding import (
    decode,
    encode_floats,
    encode_ints,
    encode_planes,
    is_not_known,
    not_known,
    require_codes,
    require_rows,
    size_of,
)
from commtrace.tracefile.facts import require_spool_facts
from commtrace.tracefile.reading import (
    Allowance,
    DamageError,
    distinct,
    is_int,
    parse_json,
    read_file,
    reading,
    text_in,
)
from commtrace.tracefile.trace import ColumnValues, StringColumn, StringTable

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

SITE = Column("site", int, "", "number of the call site in this file, from 0")
_OF_EACH = {
    "comm": (
        "id", "seq", "issue_ns", "call_ns", "blocked_ns", "complete_ns", "step", "module_call",
        "op_id", "sent_id",
    ),
    "ops": ("id", "parent", "start_ns", "duration_ns", "step", "module_call"),
}  # fmt: skip
NUMBERS = {
    table: (*[column for column in TABLES[table] if column.name in names], SITE)
    for table, names in _OF_EACH.items()
}
"""Columns that differ between alike events, in order: their numbers."""

SITES = {
    table: tuple([column for column in TABLES[table] if column.name not in names])
    for table, names in _OF_EACH.items()
}
"""Columns that alike events share, in order: their call sites."""

_FIRST_WORD = b"commtrace-spool"
_FIRST_LINE = b"%s %d\n" % (_FIRST_WORD, FORMAT_VERSION)
_FIRST_LINES = tuple(b"%s %d\n" % (_FIRST_WORD, n + 1) for n in range(FORMAT_VERSION))
_KILLED = "the process ended before it wrote its first batch"
_OTHERS = "merge the spools of the other ranks: this rank is then reported as missing"
_BATCH = struct.Struct("<II")
_LENGTH = struct.Struct("<I")
# The recorded program pays for the compression.
_FASTEST = 1


def numbers_of(table: str) -> str:
    """Return the name of the pseudo-table with the numbers of a table's events."""
    return f"{table}.numbers"


def sites_of(table: str) -> str:
    """Return the name of the pseudo-table with the call sites of a table's events."""
    return f"{table}.sites"


_TABLES = {
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
        self.write({}, facts)

    def write(
        self,
        tables: Mapping[str, Rows],
        facts: Mapping[str, Any] | None = None,
        numbers: Mapping[str, Numbers] | None = None,
    ) -> None:
        """Append rows of any tables, facts, and the numbers of events, as one batch.

        The batch is in the file on return.

        Raises:
            OSError: writing failed; the file is unchanged, and another batch may be tried.
        """
        blobs: list[bytes] = []
        heads = {name: self._encode(name, rows, blobs) for name, rows in tables.items() if rows}
        for table, flat in (numbers or {}).items():
            if flat:
                name = numbers_of(table)
                heads[name] = _encode_numbers(_TABLES[name], array("q", flat), blobs)
        head: dict[str, Any] = {"strings": self._strings.strings[self._num_written :]}
        head["facts"] = dict(facts or {})
        head["tables"] = heads
        encoded = json.dumps(head, separators=(",", ":")).encode()
        payload = zlib.compress(b"".join([_LENGTH.pack(len(encoded)), encoded, *blobs]), _FASTEST)
        batch = _BATCH.pack(len(payload), zlib.crc32(payload)) + payload
        self._append(batch if self._end else _FIRST_LINE + batch)
        # Not before the batch is in the file: strings of a lost batch go with the next one.
        self._num_written = len(self._strings.strings)

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        return self._end

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
        for column, values in zip(_TABLES[table], zip(*rows, strict=True), strict=True):
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
    """Return what was written to a stream, and continue at its end."""
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
        blobs.append(data)
        described[column.name] = {**description, "bytes": len(data)}
    return {"rows": len(flat) // width, "columns": described}


@dataclass(frozen=True, slots=True)
class Spool:
    """Recording of one rank.

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


def read_spool(path: Path) -> Spool:
    """Read the spool of one rank, without its truncated tail.

    Raises:
        EmptyTraceError: the file is empty.
        NotATraceError: the file is something else.
        NewerTraceError: a later commtrace has written it.
        UnbegunSpoolError: not even the first batch is complete.
        TraceError: its contents are invalid.
    """
    spool = parse_spool(read_file(path, f"cannot read the spool {path}"), path)
    require_spool_facts(spool.facts, f"cannot read the spool {path}")
    return spool


def parse_spool(data: bytes, path: Path | None = None) -> Spool:
    """Parse a spool in memory without checking its facts; `path` is only used in messages."""
    summary = f"cannot read the spool {path}"
    _check_first_line(data, summary)
    allowance = Allowance(summary, len(data))
    builder = _Builder(allowance)
    end = len(_FIRST_LINE)
    with reading(summary):
        for batch_end, payload in batches(data):
            builder.add(payload)
            end = batch_end
        if not builder.num_batches:
            raise UnbegunSpoolError(
                summary,
                place=f"byte {end}",
                found="no complete batch",
                why=_KILLED,
                attempt=_OTHERS,
            )
        return Spool(builder.facts, builder.tables(), end < len(data), path)


def batches(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the end and the stored payload of each complete batch of a spool."""
    position = len(_FIRST_LINE)
    while payload := _payload_at(data, position):
        position += _BATCH.size + len(payload)
        yield position, payload


def _check_first_line(data: bytes, summary: str) -> None:
    if not data:
        raise EmptyTraceError(summary, found="an empty file", why=_KILLED, attempt=_OTHERS)
    if data.startswith(_FIRST_LINES):
        return
    word, _, version = data[:64].partition(b"\n")[0].partition(b" ")
    if word == _FIRST_WORD and version[:20].isdigit():
        raise NewerTraceError(
            summary,
            found=f"version {int(version[:20])} of the format",
            why=f"this commtrace supports versions up to {FORMAT_VERSION}",
            attempt="install the commtrace that recorded it, or a newer one",
        )
    if _FIRST_LINE.startswith(data):
        raise UnbegunSpoolError(summary, found=f"{len(data)} bytes", why=_KILLED, attempt=_OTHERS)
    raise NotATraceError(
        summary,
        place="its first line",
        found=repr(data[:32]),
        why=f"a spool begins with the line {_FIRST_LINE.decode().strip()!r}",
        attempt="move it out of the folder, or copy it again",
    )


def _payload_at(data: bytes, position: int) -> bytes:
    """Return the payload of the batch at `position`; empty if there is none or it is truncated."""
    if position + _BATCH.size > len(data):
        return b""
    length, checksum = _BATCH.unpack_from(data, position)
    payload = data[position + _BATCH.size : position + _BATCH.size + length]
    return payload if len(payload) == length and zlib.crc32(payload) == checksum else b""


class _Builder:
    """Joins successive batches into complete columns."""

    def __init__(self, allowance: Allowance) -> None:
        self.num_batches = 0
        self.facts: dict[str, Any] = {}
        self._allowance = allowance
        self._taken_for: list[Any] = []
        self._strings = [""]
        self._arrays = {name: _empty_table(name) for name in _TABLES}

    def add(self, payload: bytes) -> None:
        place = f"batch {self.num_batches}"
        try:
            self._add(self._allowance.inflate(payload, place=place))
        except DamageError as error:
            raise DamageError(error.found, ", ".join(filter(None, (place, error.place)))) from error
        self.num_batches += 1

    def _add(self, data: bytes) -> None:
        head, blobs = _head_of(data, self._allowance)
        facts = _part(head, "facts", dict)
        if "rank" in self.facts and facts.get("rank", self.facts["rank"]) != self.facts["rank"]:
            self._taken_for.append(self.facts["rank"])
        self._taken_for += _part(facts, TAKEN_FOR, list) if TAKEN_FOR in facts else []
        self.facts.update(facts)
        strings = _part(head, "strings", list)
        if not all(type(each) is str for each in strings):
            raise DamageError("a value that is not a string", "strings")
        self._strings.extend(strings)
        self._arrays[OUTSTANDING] = _empty_table(OUTSTANDING)
        position = 0
        for name, table in _part(head, "tables", dict).items():
            if name not in _TABLES or not isinstance(table, dict):
                raise DamageError(f"a table {name[:60]!r}", "tables")
            position = self._add_table(name, table, blobs, position)

    def _add_table(self, name: str, table: dict[str, Any], blobs: bytes, position: int) -> int:
        """Append a table's columns, whose bytes begin at `position`; return the end of the last."""
        rows = require_rows(table.get("rows"), len(_TABLES[name]), self._allowance, name)
        described = _part(table, "columns", dict)
        for column in _TABLES[name]:
            try:
                if column.name not in described:
                    values = not_known(column, rows)
                else:
                    description = described[column.name]
                    end = position + size_of(description, rows)
                    values = decode(description, blobs[position:end], rows, column.type)
                    position = end
            except DamageError as error:
                raise DamageError(error.found, f"tables.{name}.columns.{column.name}") from error
            self._arrays[name][column.name].extend(values)
        return position

    def tables(self) -> dict[str, dict[str, ColumnValues]]:
        arrays = self._arrays
        distinct(self._strings)
        for name, values in arrays[OUTSTANDING].items():
            arrays["comm"][name].extend(values)
        for name in SITES:
            self._join_sites(name)
        self._correct_ranks()
        return {
            name: {column.name: self._column(name, column, ordered) for column in columns}
            for name, columns in (*TABLES.items(), (FOUND_STEPS, _TABLES[FOUND_STEPS]))
            for ordered in [_in_order(arrays[name])]
        }

    def _join_sites(self, table: str) -> None:
        arrays = self._arrays
        rows, numbers, sites = arrays[table], arrays[numbers_of(table)], arrays[sites_of(table)]
        for name in _OF_EACH[table]:
            rows[name].extend(numbers[name])
        require_codes(numbers[SITE.name], len(sites["rank"]), f"sites of {table}")
        # The memory is charged before each call site is copied into its rows.
        require_rows(len(numbers[SITE.name]), len(TABLES[table]), self._allowance, table)
        for column in SITES[table]:
            rows[column.name].extend(map(sites[column.name].__getitem__, numbers[SITE.name]))

    def _correct_ranks(self) -> None:
        """Reassign to the rank the rows that were recorded before the process knew its rank.

        A rank that made calls is kept, since threads may play several ranks.
        """
        rank = self.facts.get("rank")
        taken_for = set(filter(is_int, self._taken_for))
        if not taken_for or not is_int(rank):
            return
        taken_for -= set(self._arrays["comm"]["rank"])
        for name in ("ops", "steps"):
            ranks = self._arrays[name]["rank"]
            ranks[:] = array("q", [rank if each in taken_for else each for each in ranks])

    def _column(self, table: str, column: Column, ordered: dict[str, array[Any]]) -> ColumnValues:
        values = ordered[column.name]
        if column.type is not str:
            return values
        require_codes(values, len(self._strings), f"tables.{table}.columns.{column.name}")
        return StringColumn(values, self._strings)


_T = TypeVar("_T")


def _part(container: Mapping[str, Any], name: str, of_type: type[_T]) -> _T:
    value = container.get(name)
    if not isinstance(value, of_type):
        raise DamageError(f"no {_JSON_NAMES[of_type]} of that name", name)
    return value


_JSON_NAMES: dict[type, str] = {dict: "object", list: "list"}


def _head_of(data: bytes, allowance: Allowance) -> tuple[dict[str, Any], bytes]:
    """Return the head of a batch and the bytes that it describes."""
    if len(data) < _LENGTH.size:
        raise DamageError(f"{len(data)} bytes", "its head")
    (length,) = _LENGTH.unpack_from(data)
    end = _LENGTH.size + length
    try:
        head = parse_json(text_in(data[_LENGTH.size : end]), allowance)
    except ValueError as error:
        raise DamageError(str(error), "its head") from error
    if end > len(data) or not isinstance(head, dict):
        raise DamageError("no JSON object of that length", "its head")
    return head, data[end:]


def _empty_table(name: str) -> dict[str, array[Any]]:
    return {column.name: array("d" if column.type is float else "q") for column in _TABLES[name]}


def _in_order(table: dict[str, array[Any]]) -> dict[str, array[Any]]:
    """Return a table with each rank's rows sorted by id, if it has ids."""
    ids = table.get("id")
    if ids is None or all(before <= after for before, after in pairwise(ids)):
        return table
    keys = list(zip(table["rank"], ids, strict=True))
    order = sorted(range(len(ids)), key=keys.__getitem__)
    return {
        name: array(values.typecode, [values[i] for i in order]) for name, values in table.items()
    }
