"""A trace in memory: facts about the run, and the tables of the schema, column by column.

Readers create it; analyses, pages and exports consume it. It needs neither torch nor pandas:
integers and flags are `array`s, which numpy reads without a copy, and strings a `StringColumn`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from commtrace.errors import EmptyTraceError
from commtrace.schema import FORMAT_VERSION, TABLES, Column


@dataclass(frozen=True, slots=True)
class StringColumn(Sequence[str]):
    """Strings stored as indices: row i holds `strings[codes[i]]`; equal strings have equal indices.

    `strings` is shared by all columns of a trace and has entries that this column does not use.
    """

    codes: array[int]
    strings: Sequence[str]

    def __len__(self) -> int:
        return len(self.codes)

    def __iter__(self) -> Iterator[str]:
        strings = self.strings
        return (strings[code] for code in self.codes)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> StringColumn: ...
    def __getitem__(self, index: int | slice) -> str | StringColumn:
        if isinstance(index, slice):
            return StringColumn(self.codes[index], self.strings)
        return self.strings[self.codes[index]]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


ColumnValues = Sequence[Any]
Columns = Mapping[str, ColumnValues]


@dataclass(frozen=True, slots=True)
class Trace:
    """One run in memory.

    Every table and column of the schema is present, empty if nothing was recorded.

    Attributes:
        run: facts about the run.
        tables: column values by table and column.
        path: the file or folder it was read from, None in memory.
        version: format version of the file.
    """

    run: Mapping[str, Any]
    tables: Mapping[str, Columns]
    path: Path | None = None
    version: int = FORMAT_VERSION

    def num_rows(self, table: str) -> int:
        """Return the number of rows of a table."""
        return len(next(iter(self.tables[table].values())))

    def rows(self, table: str) -> Iterator[tuple[Any, ...]]:
        """Iterate over the rows of a table, as tuples in the order of the schema's columns."""
        return zip(*self.tables[table].values(), strict=True)


class StringTable:
    """Assigns indices to strings in order of first occurrence."""

    def __init__(self, strings: Iterable[str] = ()) -> None:
        self.strings: list[str] = []
        self._codes: dict[str, int] = {}
        for string in strings:
            self.code(string)

    def code(self, string: str) -> int:
        """Return the index of a string, adding it if new."""
        code = self._codes.get(string)
        if code is None:
            code = self._codes[string] = len(self.strings)
            self.strings.append(string)
        return code

    def codes(self, strings: Sequence[str]) -> array[int]:
        """Return the indices of many strings."""
        known = self._codes
        try:
            return array("q", [known[string] for string in strings])
        except KeyError:  # some are new; of many strings, few are distinct
            for string in dict.fromkeys(strings):
                self.code(string)
            return array("q", [known[string] for string in strings])


def column_of(column: Column, values: Sequence[Any], strings: StringTable) -> ColumnValues:
    """Convert the values of a column to the form that a `Trace` holds."""
    if column.type is str:
        return StringColumn(strings.codes(values), strings.strings)
    return array("d" if column.type is float else "q", values)


def table_of(
    name: str, rows: Sequence[tuple[Any, ...]], strings: StringTable
) -> dict[str, ColumnValues]:
    """Build a table from rows, which are tuples in the order of the schema's columns."""
    columns = TABLES[name]
    by_column = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    return {
        column.name: column_of(column, values, strings)
        for column, values in zip(columns, by_column, strict=True)
    }


def trace_of_rows(
    run: Mapping[str, Any], rows: Mapping[str, Sequence[tuple[Any, ...]]], path: Path | None = None
) -> Trace:
    """Build a trace from the rows of its tables; tables without rows may be omitted."""
    strings = StringTable()
    return Trace(run, {name: table_of(name, rows.get(name, ()), strings) for name in TABLES}, path)


def require_events(trace: Trace) -> Trace:
    """Return `trace` if it holds a communication call or an operator.

    Raises:
        EmptyTraceError: it holds neither, so there is nothing to report.
    """
    if trace.num_rows("comm") or trace.num_rows("ops"):
        return trace
    raise EmptyTraceError(
        f"nothing to show for the trace {trace.path or 'in memory'}",
        found="no communication calls or operators",
        why=_why_empty(trace.run),
        attempt="`commtrace check`, which compares the counts of calls that it has"
        if trace.num_rows("communicators")
        else "record a part of the program that communicates",
    )


def _why_empty(run: Mapping[str, Any]) -> str:
    """Return the reason for a trace without events, and the doubts about it."""
    if source := run.get("imported_from"):
        return f"the files imported from {source} contain none; the program may have made some"
    doubts = (
        (run.get("torn_ranks"), "ended before its calls were written"),
        (run.get("missing_ranks"), "did on ranks that left no recording"),
    )
    parts = ["the program did not communicate while recording was on"]
    return ", or ".join([*parts, *(text for holds, text in doubts if holds)])
