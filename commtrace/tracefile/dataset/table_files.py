"""Bounded reading of some columns of a table's Parquet file.

Nothing that is read is trusted: counts and types are compared before memory is allocated.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from commtrace.schema import TABLES, Column
from commtrace.tracefile.arrays import zeros
from commtrace.tracefile.dataset.layout import digest_of, file_names
from commtrace.tracefile.dataset.parquet_format import (
    METADATA,
    NULLABLE,
    UNKNOWN,
    Origin,
)
from commtrace.tracefile.encoding import value_of_missing
from commtrace.tracefile.reading import Allowance, DamageError, is_int
from commtrace.tracefile.trace import ColumnValues, StringColumn, StringTable


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group of a file.

    Attributes:
        number: its number.
        first: number of its first row in the file.
        num_rows: number of rows.
        least: least time at which a row begins, in Unix ns; None if unknown.
        most: largest time at which a row ends; None if the end of any is unknown.
    """

    number: int
    first: int
    num_rows: int
    least: int | None
    most: int | None

    def may_touch(self, first_ns: int, last_ns: int) -> bool:
        """Return whether a row may touch the time from `first_ns` to `last_ns`."""
        begins_behind = self.least is not None and self.least >= last_ns
        ends_before = self.most is not None and self.most < first_ns
        return not begins_behind and not ends_before


_ENDING = struct.Struct("<I4s")
"""End of a file: the length of its footer, and the mark of the format."""

_TIMES = {
    "comm": ("issue_ns", "complete_ns"),
    "ops": ("start_ns", ""),
    "kernels": ("start_ns", ""),
    "fingerprints": ("at_ns", "at_ns"),
    "syncs": ("at_ns", ""),
}
"""Columns of the times at which a row of a table begins and ends."""


def footer_digest(path: Path) -> str:
    """Return the digest of a file's footer.

    Raises:
        DamageError: the file is missing, or has no footer.
    """
    try:
        with path.open("rb") as file:
            num_bytes = file.seek(0, os.SEEK_END)
            file.seek(max(num_bytes - _ENDING.size, 0))
            ending = file.read()
            length = _ENDING.unpack(ending)[0] if len(ending) == _ENDING.size else num_bytes
            if length > num_bytes - _ENDING.size:
                raise DamageError("a file without a footer", str(path))
            file.seek(-length - _ENDING.size, os.SEEK_END)
            return digest_of(file.read())
    except OSError as error:
        raise DamageError(error.strerror or str(error), str(path)) from error


def footer_digests(folder: Path, rows: Mapping[str, Collection[int]]) -> dict[str, str]:
    """Return the digests of all files of a dataset, by name.

    Args:
        folder: the folder of the dataset.
        rows: the ranks that have rows, by table of `RANK_TABLES`.
    """
    return {name: footer_digest(folder / name) for name in file_names(rows, rows["comm"])}


class TableFile:
    """One opened file of a table; its metadata is read, but no row.

    Attributes:
        path: the file.
        num_bytes: its size.
        num_rows: number of rows.

    Args:
        table: name of the table.
        path: the file.
        summary: begins errors of files that claim more memory than they may take.

    Raises:
        DamageError: it is damaged or missing.
    """

    def __init__(self, table: str, path: Path, summary: str = "") -> None:
        import pyarrow as pa  # pyright: ignore[reportMissingImports]
        import pyarrow.parquet as pq  # pyright: ignore[reportMissingImports]

        self.path = path
        self._table = table
        summary = summary or f"cannot read {path}"
        self._errors = (pa.ArrowException, OSError, ValueError, KeyError)
        texts = [column.name for column in TABLES[table] if column.type is str]
        try:
            self.num_bytes = path.stat().st_size
            # As bytes: a name need not be valid UTF-8.
            self._file = pq.ParquetFile(
                pa.OSFile(os.fsencode(path)), read_dictionary=texts, page_checksum_verification=True
            )
        except self._errors as error:
            text = getattr(error, "strerror", None) or str(error)
            raise self._damage(text) from error
        self._allowance = Allowance(summary, self.num_bytes)
        metadata = self._file.metadata
        self.num_rows: int = metadata.num_rows
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        self._rows_of_groups = [group.num_rows for group in groups]
        self._sizes_of_groups = [
            {name: max(chunk.total_uncompressed_size, 0) for name, chunk in _chunks(group).items()}
            for group in groups
        ]
        self._unknown = self._unknown_columns(metadata.metadata or {})
        if sum(self._rows_of_groups) != self.num_rows or min(self._rows_of_groups, default=0) < 0:
            raise self._damage(f"{self.num_rows:,} rows, which the row groups do not have")

    def _damage(self, found: str) -> DamageError:
        return DamageError(" ".join(found.split())[:200], str(self.path))

    def _unknown_columns(self, metadata: Mapping[bytes, bytes]) -> frozenset[str]:
        """Return the columns without a known value, as far as the file states them."""
        try:
            names = json.loads(metadata.get(UNKNOWN.encode(), b"[]"))
        except ValueError:
            names = []
        if not isinstance(names, list):
            return frozenset()
        there = NULLABLE[self._table].intersection(*self._sizes_of_groups)
        return there.intersection([name for name in names if isinstance(name, str)])

    @property
    def origin(self) -> Origin:
        """Origin of the rows."""
        metadata: Mapping[bytes, bytes] = self._file.metadata.metadata or {}
        try:
            key, last_ns = json.loads(metadata.get(METADATA.encode(), b"[]"))
        except ValueError:
            key, last_ns = "", -1
        return Origin(key, last_ns) if isinstance(key, str) and is_int(last_ns) else Origin("")

    def read(
        self, strings: StringTable, only: Collection[str] | None = None
    ) -> dict[str, ColumnValues]:
        """Read the rows.

        Args:
            strings: the string table of the columns, which is extended.
            only: names of the columns; others are unknown.

        Raises:
            DamageError: the file is damaged.
            OversizedTraceError: it claims more memory than it may take.
        """
        columns = [each for each in TABLES[self._table] if only is None or each.name in only]
        self._require_space(columns)
        found: dict[str, Any] = {}
        views: dict[str, np.ndarray] = {}
        for column in columns:
            found[column.name], views[column.name] = zeros(
                self.num_rows, of_floats=column.type is float
            )
        self._read_into(views, columns, strings)
        return self._completed(columns, found, strings)

    def read_columns(
        self,
        columns: Sequence[Column],
        into: Mapping[str, np.ndarray],
        strings: StringTable,
        groups: Sequence[int] | None = None,
    ) -> None:
        """Read columns into arrays; errors are as in `read`.

        Args:
            columns: the columns.
            into: an array for each column, of as many rows as the row groups have.
            strings: the string table of the columns, which is extended.
            groups: numbers of the only row groups that are read, in ascending order.
        """
        self._require_space(columns)
        self._read_into(into, columns, strings, groups)

    @property
    def row_groups(self) -> list[RowGroup]:
        """The row groups, with the times that their rows state."""
        metadata = self._file.metadata
        found, first = [], 0
        for number, num_rows in enumerate(self._rows_of_groups):
            least, most = self._times_of_group(metadata.row_group(number))
            found.append(RowGroup(number, first, num_rows, least, most))
            first += num_rows
        return found

    def _times_of_group(self, group: Any) -> tuple[int | None, int | None]:
        """Return the least time of begin and the largest time of end, None if they are unknown."""
        begin, end = _TIMES[self._table]
        chunks = _chunks(group)
        least = most = None
        try:
            if begin in chunks and (stated := chunks[begin].statistics) and stated.has_min_max:
                least = stated.min
            if end in chunks and (stated := chunks[end].statistics) and stated.has_min_max:
                # An unknown end may be any.
                most = stated.max if stated.has_null_count and not stated.null_count else None
        except self._errors as error:
            raise self._damage(str(error)) from error
        return (least if is_int(least) else None), (most if is_int(most) else None)

    def _read_into(
        self,
        views: Mapping[str, np.ndarray],
        columns: Sequence[Column],
        strings: StringTable,
        groups: Sequence[int] | None = None,
    ) -> None:
        begin = 0
        for number in range(len(self._rows_of_groups)) if groups is None else groups:
            rows = self._rows_of_groups[number]
            known = [each.name for each in columns if each.name not in self._unknown]
            group = self._row_group(number, known) if known else None
            for column in columns:
                part = views[column.name][begin : begin + rows]
                if group is not None and column.name in known:
                    self._fill(part, column, group.column(column.name), strings)
                else:
                    part[:] = _code_of_missing(column, strings)
            begin += rows

    def _require_space(self, columns: Sequence[Column]) -> None:
        # Row groups are read one after the other.
        of_groups = [
            sum(sizes.get(column.name, 0) for column in columns) for sizes in self._sizes_of_groups
        ]
        needed = max(of_groups, default=0) + 8 * self.num_rows * (len(columns) + 1)
        if needed > self._allowance.left:
            self._allowance.take(needed, f"{self.num_rows:,} rows", str(self.path))

    def _row_group(self, number: int, names: list[str]) -> Any:
        try:
            group = self._file.read_row_group(number, columns=names, use_threads=False)
        except self._errors as error:
            raise self._damage(str(error)) from error
        missing = set(names) - set(group.column_names)
        if missing or group.num_rows != self._rows_of_groups[number]:
            raise self._damage(f"no column {min(missing)}" if missing else "rows that are missing")
        return group

    def _fill(self, part: np.ndarray, column: Column, values: Any, strings: StringTable) -> None:
        begin = 0
        for chunk in values.chunks:
            into = part[begin : begin + len(chunk)]
            begin += len(chunk)
            try:
                if column.type is str:
                    _fill_strings(into, chunk, strings)
                else:
                    _fill_numbers(into, chunk, column, column.name in NULLABLE[self._table])
            except self._errors as error:
                raise self._damage(f"column {column.name}: {error}") from error

    def _completed(
        self, columns: Sequence[Column], found: Mapping[str, Any], strings: StringTable
    ) -> dict[str, ColumnValues]:
        """Return all columns of the table; those that were not read share their unknown values."""
        unknown: dict[type, Any] = {}
        table: dict[str, ColumnValues] = {}
        for column in TABLES[self._table]:
            values = found.get(column.name)
            if values is None:
                if column.type not in unknown:
                    unknown[column.type], view = zeros(
                        self.num_rows, of_floats=column.type is float
                    )
                    view[:] = _code_of_missing(column, strings)
                values = unknown[column.type]
            table[column.name] = (
                StringColumn(values, strings.strings) if column.type is str else values
            )
        return table


def _code_of_missing(column: Column, strings: StringTable) -> Any:
    return strings.code("") if column.type is str else value_of_missing(column)


def _chunks(group: Any) -> dict[str, Any]:
    """Return the columns of a row group by name."""
    return {each.path_in_schema: each for each in map(group.column, range(group.num_columns))}


def _fill_numbers(into: np.ndarray, chunk: Any, column: Column, is_nullable: bool) -> None:
    import pyarrow as pa  # pyright: ignore[reportMissingImports]

    expected = {int: pa.int64(), bool: pa.bool_(), float: pa.float64()}[column.type]
    if chunk.type != expected:
        raise ValueError(f"{chunk.type} instead of {expected}")
    if chunk.null_count:
        if not is_nullable:
            raise ValueError("null")
        chunk = chunk.fill_null(-1)
    into[:] = chunk.to_numpy(zero_copy_only=False)


def _fill_strings(into: np.ndarray, chunk: Any, strings: StringTable) -> None:
    import pyarrow as pa  # pyright: ignore[reportMissingImports]

    if not pa.types.is_dictionary(chunk.type) or not pa.types.is_string(chunk.type.value_type):
        raise ValueError(f"{chunk.type} instead of string")
    chunk.validate(full=True)
    # The last place is for an unknown text.
    new = np.asarray(strings.codes([*(text or "" for text in chunk.dictionary.to_pylist()), ""]))
    indices = chunk.indices
    if indices.null_count:
        indices = indices.fill_null(len(new) - 1)
    np.take(new, indices.to_numpy(zero_copy_only=False), out=into, mode="clip")
