"""Exporter of a trace's tables to a folder, one file per table, for any other program.

    run-csv/comm.csv ops.csv groups.csv ranks.csv steps.csv    the tables, in the schema's columns
    run-csv/columns.csv                                        unit and meaning of each column
    run-csv/facts.csv                                          facts about the run

An unknown value is an empty field in CSV and null in Parquet. Parquet also stores units and
meanings as metadata of its columns; it requires pyarrow, which nothing else here does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.facts import FACTS
from commtrace.analyze.run.analysis import Analysis
from commtrace.analyze.run.frame import Frames
from commtrace.atomic_write import atomic_write, output_folder
from commtrace.errors import UsageError
from commtrace.exporters.spreadsheet import write_csv_rows
from commtrace.schema import TABLES, Column

_ROWS_AT_ONCE = 100_000


def write_csv_tables(frames: Frames, folder: Path) -> None:
    """Write each table as CSV into `folder`."""
    options: Any = {"encoding": "utf-8", "errors": "backslashreplace", "newline": ""}
    with output_folder(folder):
        for name, columns, tables in _tables(frames):
            with (
                atomic_write(folder / f"{name}.csv") as unfinished,
                unfinished.open("w", **options) as stream,
            ):
                write_csv_rows(stream, [column.name for column in columns], _rows(tables, columns))


def _rows(tables: Iterable[pd.DataFrame], columns: Sequence[Column]) -> Iterator[Sequence[Any]]:
    for table in tables:
        for start in range(0, len(table), _ROWS_AT_ONCE):
            part = table.iloc[start : start + _ROWS_AT_ONCE]
            yield from zip(*(_fields(part[column.name], column) for column in columns), strict=True)


def _fields(values: pd.Series, column: Column) -> list[Any]:
    plain = values.astype(object) if column.type is str else values
    missing = column.missing
    if column.type is int:
        return ["" if value == missing else value for value in plain.tolist()]
    if column.type is bool:
        return ["true" if value else "false" for value in plain.tolist()]
    return plain.tolist()


def write_parquet_tables(frames: Frames, folder: Path) -> None:
    """Write each table as Parquet into `folder`.

    Raises:
        UsageError: pyarrow is not installed.
    """
    try:
        import pyarrow as pa  # pyright: ignore[reportMissingImports]
        import pyarrow.parquet as pq  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UsageError(
            "cannot write Parquet",
            found="no pyarrow",
            why="it is not among the packages that commtrace installs by itself",
            attempt="`pip install 'commtrace[parquet]'`, or --to csv",
        ) from error
    with output_folder(folder):
        for name, columns, tables in _tables(frames):
            with atomic_write(folder / f"{name}.parquet") as unfinished, ExitStack() as stack:
                writer = None
                # A stream, since a name need not be valid UTF-8.
                stream = stack.enter_context(unfinished.open("wb"))
                for table in tables:
                    arrays = [_array(pa, table[column.name], column) for column in columns]
                    schema = _schema(pa, columns, arrays)
                    if writer is None:
                        writer = stack.enter_context(pq.ParquetWriter(stream, schema))
                    writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _schema(pa: Any, columns: Sequence[Column], arrays: Sequence[Any]) -> Any:
    fields = [
        pa.field(column.name, array.type, metadata={"unit": column.unit, "meaning": column.meaning})
        for column, array in zip(columns, arrays, strict=True)
    ]
    return pa.schema(fields, metadata={"exporter": "commtrace"})


def _array(pa: Any, values: pd.Series, column: Column) -> Any:
    if column.type is not str:
        plain = values.to_numpy()
        missing = plain == column.missing if column.type is int else None
        return pa.array(plain, mask=missing)
    if isinstance(values.dtype, pd.CategoricalDtype):
        names = np.asarray(values.cat.categories.astype(object), dtype=object)
        codes = values.cat.codes.to_numpy().astype("int32")
    else:
        codes, found = pd.factorize(values.astype(object))
        names, codes = np.asarray(found, dtype=object), codes.astype("int32")
    unknown = np.isin(codes, np.flatnonzero(names == "")) | (codes < 0)
    return pa.DictionaryArray.from_arrays(
        pa.array(codes, mask=unknown), pa.array(names.tolist(), type=pa.string())
    )


_COLUMNS = (
    Column("table", str, "", "name of the table"),
    Column("column", str, "", "name of the column"),
    Column("type", str, "", "int, float, bool or str"),
    Column("unit", str, "", "unit; empty for names and counts"),
    Column("meaning", str, "", "meaning of the column"),
)


def _tables(frames: Frames) -> Iterator[tuple[str, tuple[Column, ...], Iterable[pd.DataFrame]]]:
    """Yield name, columns and rows of each file; a stored run has its events in several tables."""
    for name, columns in TABLES.items():
        is_small = name not in ("comm", "ops", "kernels", "syncs")
        yield (
            name,
            columns,
            (getattr(part, name) for part in ([frames] if is_small else frames.parts_by_ranks())),
        )
    facts: Analysis = FACTS
    yield "facts", tuple(facts.columns), [facts.function(frames)]
    rows = [
        (table, column.name, column.type.__name__, column.unit, column.meaning)
        for table, columns in TABLES.items()
        for column in columns
    ]
    yield "columns", _COLUMNS, [pd.DataFrame(rows, columns=[column.name for column in _COLUMNS])]
