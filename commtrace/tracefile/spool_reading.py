"""Reader of the spool of a rank (see `spool`), up to its last complete batch.

    spool = read_spool(Path("RUN.comm/rank-00003.spool"))
    list(spool.tables["comm"]["issue_ns"])

A caller that needs some columns only names them, and no others are decoded. An outline needs none
of the events, so that their bytes are not even inflated.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from commtrace.errors import EmptyTraceError, NewerTraceError, NotATraceError, UnbegunSpoolError
from commtrace.schema import FORMAT_VERSION
from commtrace.tracefile.beside_spool import facts_beside, with_stacks_beside
from commtrace.tracefile.encoding import require_rows, size_of
from commtrace.tracefile.facts import require_spool_facts
from commtrace.tracefile.outline import OUTLINE_COLUMNS, SMALL_TABLES, Outline, outline_of
from commtrace.tracefile.reading import (
    Allowance,
    DamageError,
    is_int,
    parse_json,
    read_file,
    reading,
    text_in,
)
from commtrace.tracefile.spool import (
    BATCH,
    FIRST_LINE,
    FIRST_WORD,
    LENGTH,
    SPOOL_TABLES,
    TAKEN_FOR,
    Spool,
    first_line_of,
)
from commtrace.tracefile.trace import ColumnValues

if TYPE_CHECKING:
    from commtrace.tracefile.spool_columns import SpoolColumns

_MOST_BYTES_OF_FIRST_BATCH = 1 << 20
_KILLED = "the process ended before it wrote its first batch"
_OTHERS = "merge the spools of the other ranks: this rank is then reported as missing"

ColumnNames = Mapping[str, Collection[str] | None]
"""ColumnNames of columns by table; None means all of the table."""


def read_spool(path: Path, columns: ColumnNames | None = None) -> Spool:
    """Read the spool of a rank, without its truncated tail.

    Args:
        path: the file.
        columns: the only columns to read; by default all of all tables.

    Raises:
        EmptyTraceError: the file is empty.
        NotATraceError: the file is something else.
        NewerTraceError: a later commtrace has written it.
        UnbegunSpoolError: not even the first batch is complete.
        TraceError: its contents are invalid.
    """
    return _read(read_file(path, f"cannot read the spool {path}"), path, columns)


def _read(data: bytes, path: Path, columns: ColumnNames | None) -> Spool:
    spool = parse_spool(data, path, columns)
    spool.facts.update(facts_beside(path))
    require_spool_facts(spool.facts, f"cannot read the spool {path}")
    return replace(spool, tables=with_stacks_beside(path, spool.facts, spool.tables))


def pid_of_spool(path: Path) -> int:
    """Return the id of the process that writes a spool, by its first batch; -1 if unknown."""
    try:
        with path.open("rb") as file:
            _, payload = next(batches(file.read(_MOST_BYTES_OF_FIRST_BATCH)), (0, b""))
        (length,) = LENGTH.unpack_from(data := zlib.decompress(payload))
        pid = json.loads(data[LENGTH.size : LENGTH.size + length])["facts"]["pid"]
    except (OSError, zlib.error, struct.error, ValueError, LookupError, TypeError):
        return -1
    return pid if is_int(pid) else -1


def parse_spool(data: bytes, path: Path | None = None, columns: ColumnNames | None = None) -> Spool:
    """Parse a spool in memory without checking its facts; `path` is only used in messages."""
    summary = f"cannot read the spool {path}"
    with reading(summary):
        parser = _parsed(data, summary, None)
        return Spool(parser.facts, parser.tables(columns), parser.is_truncated, path)


def read_outline(path: Path) -> Outline:
    """Read the outline of the spool of a rank.

    Raises:
        TraceError: as `read_spool` does.
    """
    summary = f"cannot read the spool {path}"
    data = read_file(path, summary)
    with reading(summary):
        parser = _parsed(data, summary, SMALL_TABLES)
    parser.facts.update(facts_beside(path))
    require_spool_facts(parser.facts, summary)
    if parser.taken_for or not parser.facts.get("end_ns"):
        # The rows of steps depend on calls, or the end on the last event.
        return outline_of(_read(data, path, OUTLINE_COLUMNS))
    with reading(summary):
        tables = parser.tables(dict.fromkeys(SMALL_TABLES))
    tables = with_stacks_beside(path, parser.facts, tables)
    num_calls = parser.columns.num_rows("comm")
    return Outline(parser.facts, tables, parser.is_truncated, path, num_calls=num_calls)


def _parsed(data: bytes, summary: str, only: Collection[str] | None) -> _Parser:
    """Parse all batches, or of their tables only these."""
    from commtrace.tracefile.spool_columns import SpoolColumns  # imported late: it loads numpy

    _check_first_line(data, summary)
    allowance = Allowance(summary, len(data))
    parser = _Parser(allowance, SpoolColumns(allowance), only)
    end = len(first_line_of(data))
    for batch_end, payload in batches(data):
        parser.add(payload)
        end = batch_end
    if not parser.num_batches:
        if _continues_behind_batch(data, end):
            raise DamageError("a batch that differs from its checksum", f"byte {end}")
        raise UnbegunSpoolError(
            summary,
            place=f"byte {end}",
            found="no complete batch",
            why=_KILLED,
            attempt=_OTHERS,
        )
    parser.is_truncated = end < len(data)
    return parser


class GrowingSpool:
    """Spool that a rank still writes; each reading parses what was appended since the last."""

    def __init__(self, path: Path) -> None:
        from commtrace.tracefile.spool_columns import SpoolColumns  # imported late: it loads numpy

        self.path = path
        self._position = 0
        self._allowance = Allowance(f"cannot read the spool {path}", 0)
        self._columns = SpoolColumns(self._allowance)
        self._parser = _Parser(self._allowance, self._columns, None)

    def read(self) -> Spool | None:
        """Read the new batches, and return all rows that are kept; None before the first batch.

        Raises:
            OSError: the file is gone or cannot be read.
            TraceError: its contents are invalid.
        """
        with self.path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        self._allowance.renew(len(data))
        with reading(self._allowance.summary):
            begin = self._position
            for end, payload in batches(data):
                self._parser.add(payload)
                self._position = begin + end
            if not self._parser.num_batches:
                return None
            return Spool(dict(self._parser.facts), self._parser.tables(None), False, self.path)

    def age(self) -> None:
        """Drop the rows that were there at the last call."""
        self._columns.age()


def batches(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the end and the stored payload of each complete batch of a spool."""
    position = len(first_line_of(data))
    while payload := _payload_at(data, position):
        position += BATCH.size + len(payload)
        yield position, payload


def _check_first_line(data: bytes, summary: str) -> None:
    if not data:
        raise EmptyTraceError(summary, found="an empty file", why=_KILLED, attempt=_OTHERS)
    if first_line_of(data):
        return
    word, _, version = data[:64].partition(b"\n")[0].partition(b" ")
    if word == FIRST_WORD and version[:20].isdigit():
        raise NewerTraceError(
            summary,
            found=f"version {int(version[:20])} of the format",
            why=f"this commtrace supports versions up to {FORMAT_VERSION}",
            attempt="install the commtrace that recorded it, or a newer version",
        )
    if FIRST_LINE.startswith(data):
        raise UnbegunSpoolError(summary, found=f"{len(data)} bytes", why=_KILLED, attempt=_OTHERS)
    raise NotATraceError(
        summary,
        place="its first line",
        found=repr(data[:32]),
        why=f"a spool begins with the line {FIRST_LINE.decode().strip()!r}",
        attempt="move it out of the folder, or copy it again",
    )


def _payload_at(data: bytes, position: int) -> bytes:
    """Return the payload of the batch at `position`; empty if there is none or it is truncated."""
    if position + BATCH.size > len(data):
        return b""
    length, checksum = BATCH.unpack_from(data, position)
    payload = data[position + BATCH.size : position + BATCH.size + length]
    return payload if len(payload) == length and zlib.crc32(payload) == checksum else b""


def _continues_behind_batch(data: bytes, position: int) -> bool:
    """Return whether there is more behind a batch, so that it was once written completely."""
    if position + BATCH.size > len(data):
        return False
    length, _ = BATCH.unpack_from(data, position)
    return 0 < length < len(data) - position - BATCH.size


class _Parser:
    """Collects the facts of successive batches, and hands the data of their tables on.

    For tables that are not among `only`, just the number of rows is known.
    """

    def __init__(
        self, allowance: Allowance, columns: SpoolColumns, only: Collection[str] | None
    ) -> None:
        self.num_batches = 0
        self.is_truncated = False
        self._only = only
        self.facts: dict[str, Any] = {}
        self.taken_for: list[Any] = []
        self.columns = columns
        self._allowance = allowance

    def add(self, payload: bytes) -> None:
        place = f"batch {self.num_batches}"
        try:
            self._add(_Payload(payload, self._allowance, place, self._only is None), place)
        except DamageError as error:
            raise DamageError(error.found, ", ".join(filter(None, (place, error.place)))) from error
        self.num_batches += 1

    def tables(self, only: ColumnNames | None) -> dict[str, dict[str, ColumnValues]]:
        """Return the columns of all tables, or those that are named."""
        return self.columns.tables(self.facts.get("rank"), self.taken_for, only)

    def _add(self, payload: _Payload, batch: str) -> None:
        head, begin = _head_of(payload, self._allowance)
        facts = _part(head, "facts", dict)
        if "rank" in self.facts and facts.get("rank", self.facts["rank"]) != self.facts["rank"]:
            self.taken_for.append(self.facts["rank"])
        self.taken_for += _part(facts, TAKEN_FOR, list) if TAKEN_FOR in facts else []
        self.facts.update(facts)
        strings = _part(head, "strings", list)
        if not all(type(each) is str for each in strings):
            raise DamageError("a value that is not a string", "strings")
        self.columns.begin_batch(strings)
        for name, table in _part(head, "tables", dict).items():
            if name not in SPOOL_TABLES or not isinstance(table, dict):
                raise DamageError(f"a table {name[:60]!r}", "tables")
            begin = self._add_table(name, table, payload, begin, batch)

    def _add_table(
        self, name: str, table: dict[str, Any], payload: _Payload, position: int, batch: str
    ) -> int:
        """Add a table's columns, whose bytes begin at `position`; return the end of the last."""
        rows = require_rows(table.get("rows"), len(SPOOL_TABLES[name]), self._allowance, name)
        described = _part(table, "columns", dict)
        encoded = {}
        is_read = self._only is None or name in self._only
        for column in SPOOL_TABLES[name]:
            if column.name not in described:
                continue
            description = described[column.name]
            try:
                end = position + size_of(description, rows)
            except DamageError as error:
                raise DamageError(error.found, f"tables.{name}.columns.{column.name}") from error
            if is_read:
                encoded[column.name] = description, payload.between(position, end)
            position = end
        self.columns.add(name, rows, encoded, batch)
        return position


_T = TypeVar("_T")


def _part(container: Mapping[str, Any], name: str, of_type: type[_T]) -> _T:
    value = container.get(name)
    if not isinstance(value, of_type):
        raise DamageError(f"no {_JSON_NAMES[of_type]} of that name", name)
    return value


_JSON_NAMES: dict[type, str] = {dict: "object", list: "list"}


class _Payload:
    """Contents of a batch, inflated as far as they are asked for, and charged to the allowance."""

    def __init__(self, payload: bytes, allowance: Allowance, place: str, is_read: bool) -> None:
        self._machine = zlib.decompressobj()
        self._rest = payload
        self._allowance = allowance
        self._place = place
        self._data: bytes | bytearray = bytearray()
        if is_read:
            self._data = allowance.inflate(payload, place=place)
            self._rest = b""

    def between(self, begin: int, end: int) -> memoryview:
        """Return some of the bytes; fewer if there are no more."""
        if end > len(self._data) and self._rest:
            self._inflate(end)
        return memoryview(self._data)[begin:end]

    def _inflate(self, end: int) -> None:
        more = end - len(self._data)
        self._allowance.take(more, "a batch", self._place)
        try:
            part = self._machine.decompress(self._rest, more)
        except zlib.error as error:
            raise DamageError(f"damaged compressed data: {error}") from error
        self._rest = self._machine.unconsumed_tail
        # A new object, since the views of the former one are in use.
        self._data = bytes(self._data) + part


def _head_of(payload: _Payload, allowance: Allowance) -> tuple[dict[str, Any], int]:
    """Return the head of a batch, and the place of the bytes that it describes."""
    length_bytes = payload.between(0, LENGTH.size)
    if len(length_bytes) < LENGTH.size:
        raise DamageError(f"{len(length_bytes)} bytes", "its head")
    (length,) = LENGTH.unpack_from(length_bytes)
    end = LENGTH.size + length
    encoded = bytes(payload.between(LENGTH.size, end))
    try:
        head = parse_json(text_in(encoded), allowance)
    except ValueError as error:
        raise DamageError(str(error), "its head") from error
    if len(encoded) < length or not isinstance(head, dict):
        raise DamageError("no JSON object of that length", "its head")
    return head, end
