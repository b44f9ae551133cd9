"""Format of the Parquet files of a table's rows.

An unknown value is null, and of another type of value there is

    int   int64, in differences for numbers and times of events; a dictionary for all others
    bool  boolean
    str   string, as a dictionary

Row groups have `ROWS_IN_GROUP` rows, which are a stretch of time, with the least and the largest
number and time of each. Pages have checksums. A file also states its `Origin`, and the columns of
which no value is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from commtrace.errors import UsageError
from commtrace.schema import MAY_BE_NEGATIVE, TABLES, Column

ROWS_IN_GROUP = 1 << 17
METADATA, UNKNOWN = "commtrace", "commtrace.unknown"
"""Keys of a file's metadata: its origin, and the columns without a known value."""


def pyarrow(summary: str) -> Any:
    """Return pyarrow's module `parquet`.

    Raises:
        UsageError: pyarrow is not installed; begins with `summary`.
    """
    try:
        import pyarrow.parquet as parquet  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UsageError(
            summary,
            found="no pyarrow",
            why="a dataset is Parquet, which commtrace reads and writes with pyarrow",
            attempt="`pip install 'commtrace[parquet]'`",
        ) from error
    return parquet


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of the rows of a file.

    Attributes:
        key: identity of the parts and of the conversion that it was made by.
        last_ns: end of the recording on the rank's own clock, for table `ranks`.
    """

    key: str
    last_ns: int = -1


def can_be_null(column: Column) -> bool:
    """Return whether a value of the column may be unknown."""
    return column.type is str or (
        column.type is int and column.least >= -1 and column.name not in MAY_BE_NEGATIVE
    )


NULLABLE = {
    table: frozenset([column.name for column in columns if can_be_null(column)])
    for table, columns in TABLES.items()
}
"""Columns of each table that may have unknown values."""
