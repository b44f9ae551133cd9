"""Batches of a growing spool, decoded as far as watching needs them.

`parse` inflates a batch and parses its head; the columns are decoded on demand. Counts are checked
against the data: a table has at most one row more than bytes. Inconsistent contents raise
`DamageError`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from commtrace.tracefile.encoding import ALL_UNKNOWN, NOT_ALIKE, decode, not_known
from commtrace.tracefile.reading import DamageError, inflate, is_int, text_in
from commtrace.tracefile.spool import LENGTH, NUMBERS, SPOOL_TABLES, numbers_of

MOST_INFLATED_BYTES = 64 << 20
"""Bound on the contents of a batch; the recorder writes a tenth of it at most."""

_CALLS, _OPS = numbers_of("comm"), numbers_of("ops")
_BYTES_PER_LONG = 8
_NAMES = {
    table: frozenset([column.name for column in columns]) for table, columns in SPOOL_TABLES.items()
}


@dataclass(frozen=True, slots=True)
class DescribedTable:
    """A table of a batch: its rows, its columns as described, and where their data begins."""

    rows: int
    columns: Mapping[str, Any]
    start: int


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch, with the data of its columns undecoded.

    Attributes:
        facts: facts to add to those known.
        strings: new strings.
        tables: tables by name.
        data: the bytes of all columns.
    """

    facts: dict[str, Any]
    strings: list[str]
    tables: Mapping[str, DescribedTable]
    data: bytes

    def num_rows(self, table: str) -> int:
        """Return the number of rows of a table."""
        described = self.tables.get(table)
        return described.rows if described else 0

    def columns(
        self, table: str, names: Sequence[str], strings: Sequence[str]
    ) -> list[Sequence[Any]]:
        """Decode columns of a table, in the order of `names`.

        Raises:
            DamageError: the data has another number of rows, or refers to an unknown string.
        """
        described = self.tables.get(table)
        if described is None or not described.rows:
            return [()] * len(names)
        found: dict[str, Sequence[Any]] = dict.fromkeys(names, ())
        position = described.start
        for column in SPOOL_TABLES[table]:
            description = described.columns.get(column.name)
            end = position + (_num_bytes(description) if description is not None else 0)
            if column.name in found:
                values: Sequence[Any]
                if description is None:
                    values = not_known(column, described.rows)
                else:
                    data = self.data[position:end]
                    values = decode(description, data, described.rows, column.type)
                found[column.name] = (
                    _texts(values, strings, column.name) if column.type is str else values
                )
            position = end
        return list(found.values())

    def calls(self) -> np.ndarray[Any, Any]:
        """Return the numbers of the calls: a row for each column of `NUMBERS`, in order."""
        return self._numbers(_CALLS, "comm")

    def last_op_ns(self) -> int:
        """Return the end of the last operator; -1 if the batch has none."""
        if not self.num_rows(_OPS):
            return -1
        names = [column.name for column in NUMBERS["ops"]]
        last = self._numbers(_OPS, "ops")[:, -1]
        return int(last[names.index("start_ns")] + max(last[names.index("duration_ns")], 0))

    def _numbers(self, name: str, table: str) -> np.ndarray[Any, Any]:
        columns = NUMBERS[table]
        described = self.tables.get(name)
        if described is None:
            return np.empty((len(columns), 0), dtype=np.int64)
        try:
            planes = [
                described.columns.get(column.name, ALL_UNKNOWN)["planes"] for column in columns
            ]
        except (KeyError, TypeError):
            decoded = self.columns(name, [column.name for column in columns], ())
            return np.array([np.asarray(each, dtype=np.int64) for each in decoded])
        return _join_planes(planes, self.data, described.start, described.rows, name)


def parse(payload: bytes) -> Batch:
    """Return the batch with a stored payload.

    Raises:
        DamageError: the payload is not a batch.
    """
    data = inflate(payload, MOST_INFLATED_BYTES)
    if len(data) < LENGTH.size:
        raise DamageError(f"{len(data)} bytes", "its head")
    (length,) = LENGTH.unpack_from(data)
    end = LENGTH.size + length
    if end > len(data):
        raise DamageError("a head that is longer than the batch", "its head")
    try:
        head = json.loads(text_in(data[LENGTH.size : end]))
    except (ValueError, RecursionError) as error:
        raise DamageError(str(error)[:200], "its head") from error
    facts, strings, tables = (
        (head.get("facts"), head.get("strings"), head.get("tables"))
        if isinstance(head, dict)
        else (None, None, None)
    )
    if not (isinstance(facts, dict) and isinstance(strings, list) and isinstance(tables, dict)):
        raise DamageError("no facts, strings and tables", "its head")
    if not all(type(each) is str for each in strings):
        raise DamageError("a value that is not a string", "strings")
    return Batch(facts, strings, _described(tables, len(data) - end), data[end:])


def _described(tables: Mapping[str, Any], num_bytes: int) -> dict[str, DescribedTable]:
    found, position = {}, 0
    for name, table in tables.items():
        if name not in SPOOL_TABLES or not isinstance(table, dict):
            raise DamageError(f"a table {name[:60]!r}", "tables")
        rows, columns = table.get("rows"), table.get("columns")
        if not is_int(rows) or not isinstance(columns, dict):
            raise DamageError("no rows and columns", f"tables.{name[:60]}")
        if not columns.keys() <= _NAMES[name]:
            raise DamageError("an unknown column", f"tables.{name[:60]}")
        size = sum([_num_bytes(each) for each in columns.values()])
        if not 0 <= rows <= size + 1 or position + size > num_bytes:
            raise DamageError(f"{rows:,} rows in {size:,} bytes", f"tables.{name[:60]}")
        found[name] = DescribedTable(rows, columns, position)
        position += size
    return found


def _num_bytes(description: Any) -> int:
    """Return the bytes of a column as its description states them; decoding checks them."""
    size = description.get("bytes", 0) if type(description) is dict else -1
    if type(size) is not int or size < 0:
        raise DamageError("an invalid description of a column", "tables")
    return size


def _texts(codes: Sequence[int], strings: Sequence[str], place: str) -> list[str]:
    if len(codes) and not 0 <= min(codes) <= max(codes) < len(strings):
        raise DamageError(f"a string number outside of 0..{len(strings) - 1}", place)
    return [strings[code] for code in codes]


def _join_planes(
    planes: list[Any], data: bytes, start: int, rows: int, name: str
) -> np.ndarray[Any, Any]:
    """Return all columns of byte planes in a single operation, faster than column by column."""
    try:
        alike = np.array(planes, dtype=np.int64).reshape(-1)
    except (ValueError, TypeError, OverflowError) as error:
        raise DamageError("planes that are not 8 bytes", name) from error
    if len(alike) != _BYTES_PER_LONG * len(planes) or alike.min() < NOT_ALIKE or alike.max() > 255:
        raise DamageError("planes that are not 8 bytes", name)
    differs = alike == NOT_ALIKE
    num_differing = int(differs.sum())
    if start + num_differing * rows > len(data):
        raise DamageError(f"{len(data) - start} bytes for {rows} rows of {num_differing}", name)
    filled = np.empty((len(alike), rows), dtype=np.uint8)
    filled[:] = alike.astype(np.uint8)[:, None]
    stored = np.frombuffer(data, np.uint8, num_differing * rows, start)
    filled[differs] = stored.reshape(num_differing, rows)
    by_column = filled.reshape(len(planes), _BYTES_PER_LONG, rows).transpose(0, 2, 1)
    return np.ascontiguousarray(by_column).view("<i8").reshape(len(planes), rows).astype(np.int64)
