"""Writing of a table's rows to a Parquet file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from commtrace.atomic_write import atomic_write
from commtrace.escaping import encodable
from commtrace.schema import INSTANT, TABLES, Column
from commtrace.tracefile.arrays import recoded, view_of
from commtrace.tracefile.dataset import parquet_format
from commtrace.tracefile.dataset.parquet_format import (
    METADATA,
    UNKNOWN,
    Origin,
    can_be_null,
    pyarrow,
)
from commtrace.tracefile.trace import Columns, ColumnValues, StringColumn, StringTable

_COMPRESSION = "snappy"
# Differ from row to row, so that a dictionary would be as long as the column.
_IN_DIFFERENCES = ("id", "seq", "op_id", "sent_id", "call_id", "parent")
_WITH_BOUNDS = ("id", "step")


def write_table(table: str, columns: Columns, path: Path, origin: Origin) -> int:
    """Write a table's rows atomically, and return their number.

    Raises:
        OutputError: the file cannot be written.
        UsageError: pyarrow is not installed.
    """
    pq = pyarrow(f"cannot write {path}")
    import pyarrow as pa  # pyright: ignore[reportMissingImports]

    columns_of = TABLES[table]
    columns = {column.name: _coded(column, columns[column.name]) for column in columns_of}
    num_rows = len(columns[columns_of[0].name])
    schema = pa.schema([_field(pa, column, columns[column.name]) for column in columns_of])
    with (
        atomic_write(path) as unfinished,
        # Our own stream, so that it is closed also after an error.
        unfinished.open("wb") as stream,
        pq.ParquetWriter(stream, schema, **_options(columns_of)) as writer,
    ):
        # A row group at a time, whose values fit into the caches of a processor.
        size = parquet_format.ROWS_IN_GROUP
        for begin in range(0, num_rows, size):
            arrays = [
                _array(pa, column, columns[column.name], slice(begin, begin + size))
                for column in columns_of
            ]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
        unknown = [each.name for each in columns_of if _is_unknown(each, columns[each.name])]
        stated = {METADATA: [origin.key, origin.last_ns], UNKNOWN: unknown}
        writer.add_key_value_metadata({key: json.dumps(each) for key, each in stated.items()})
    return num_rows


def _options(columns: Sequence[Column]) -> dict[str, Any]:
    differing = [column.name for column in columns if _differs(column)]
    bounded = [each for each in columns if each.unit == INSTANT or each.name in _WITH_BOUNDS]
    return {
        "compression": _COMPRESSION,
        "use_dictionary": [
            column.name
            for column in columns
            if column.name not in differing and column.type is not bool
        ],
        "column_encoding": dict.fromkeys(differing, "DELTA_BINARY_PACKED"),
        "write_statistics": [column.name for column in bounded],
        "write_page_checksum": True,
        "store_schema": False,
    }


def _differs(column: Column) -> bool:
    return column.type is int and (
        column.name in _IN_DIFFERENCES or column.unit == INSTANT or column.name.endswith("_ns")
    )


def _is_unknown(column: Column, values: ColumnValues) -> bool:
    """Return whether no value of a column is known; such a column need not be read."""
    if not can_be_null(column) or not len(values):
        return False
    numbers, unknown = view_of(values), 0 if column.type is str else -1
    # The first value spares a pass over most of the other columns.
    return bool(numbers[0] == unknown and numbers.max() == unknown)


def _coded(column: Column, values: ColumnValues) -> ColumnValues:
    """Return a column whose empty strings, if it has strings, have the index 0."""
    is_coded = isinstance(values, StringColumn) and values.strings and not values.strings[0]
    return recoded(values, StringTable([""])) if column.type is str and not is_coded else values


def _field(pa: Any, column: Column, values: ColumnValues) -> Any:
    """Return the description of a column; null is possible only where a value is unknown.

    Writing takes half of the time if no value needs a mark of its own.
    """
    if column.type is str:
        codes = view_of(values)
        has_unknown = len(codes) > 0 and bool(codes.min() == 0)
        return pa.field(column.name, pa.dictionary(pa.int32(), pa.string()), nullable=has_unknown)
    of_type = {int: pa.int64(), bool: pa.bool_(), float: pa.float64()}[column.type]
    numbers = view_of(values)
    has_unknown = can_be_null(column) and len(numbers) > 0 and bool(numbers.min() < 0)
    return pa.field(column.name, of_type, nullable=has_unknown)


def _array(pa: Any, column: Column, values: ColumnValues, rows: slice) -> Any:
    if isinstance(values, StringColumn):
        return _array_of_strings(pa, view_of(values)[rows], values.strings)
    numbers = view_of(values)[rows]
    if column.type is bool:
        return pa.array(numbers != 0)
    if can_be_null(column) and numbers.min() < 0:
        is_unknown = numbers < 0
        if is_unknown.all():
            return pa.nulls(len(numbers), pa.int64())
        return pa.array(numbers, mask=is_unknown)
    return pa.array(numbers)


def _array_of_strings(pa: Any, codes: np.ndarray, strings: Any) -> Any:
    if not codes.any():
        return pa.DictionaryArray.from_arrays(
            pa.nulls(len(codes), pa.int32()), pa.array([], pa.string())
        )
    used = np.flatnonzero(np.bincount(codes))
    new = np.zeros(used[-1] + 1, dtype=np.int32)
    new[used] = np.arange(len(used))
    texts = [encodable(strings[code]) for code in used.tolist()]
    places = np.empty(len(codes), dtype=np.int32)
    np.take(new, codes, out=places, mode="clip")
    mask = None if used[0] else codes == 0
    return pa.DictionaryArray.from_arrays(pa.array(places, mask=mask), pa.array(texts, pa.string()))
