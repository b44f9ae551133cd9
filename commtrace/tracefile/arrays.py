"""Arrays of a trace's columns as numpy sees them, without a copy.

A column is an `array` of 8-byte integers or floats (see `trace`). numpy fills and reads it through
a view that shares its memory. Imported by readers only, since it loads numpy.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from commtrace.tracefile.trace import ColumnValues, StringColumn, StringTable


def zeros(rows: int, *, of_floats: bool = False) -> tuple[array[Any], np.ndarray]:
    """Return an array of zeros, and a view to fill it through."""
    values = array("d" if of_floats else "q", [0]) * rows
    return values, np.frombuffer(values, dtype=values.typecode)


def array_of(values: Any) -> array[Any]:
    """Return a copy of a numpy array, or of a list of integers, as an `array`."""
    values = np.asarray(values)
    copy, view = zeros(len(values), of_floats=values.dtype.kind == "f")
    view[:] = values
    return copy


def view_of(values: ColumnValues) -> np.ndarray:
    """Return the numbers of a column, or the indices of its strings."""
    values = values.codes if isinstance(values, StringColumn) else values
    if isinstance(values, array):
        return np.frombuffer(values, dtype=values.typecode)
    return np.asarray(values, dtype=None if len(values) else np.int64)


def taken(values: ColumnValues, places: Sequence[int] | np.ndarray) -> ColumnValues:
    """Return the values of a column at these places, which must exist."""
    places = np.asarray(places, dtype=np.intp)
    source = view_of(values)
    chosen, view = zeros(len(places), of_floats=source.dtype.kind == "f")
    if len(places):
        # The mode that needs no second buffer for `out`.
        np.take(source, places, out=view, mode="clip")
    return StringColumn(chosen, values.strings) if isinstance(values, StringColumn) else chosen


def shifted(values: ColumnValues, offset: int) -> ColumnValues:
    """Return a column of points in time, later by `offset`; unknown points (-1) stay unknown.

    Raises:
        OverflowError: a sum does not fit into 64 bits.
    """
    if not offset or not len(values):
        return values
    before = view_of(values)
    for extreme in (int(before.min()), int(before.max())):
        if not -(1 << 63) <= extreme + offset < 1 << 63:
            raise OverflowError(f"{extreme} + {offset} is more than 64 bits")
    later, view = zeros(len(before))
    np.add(before, offset, out=view)
    view[before == -1] = -1
    return later


def used_codes(values: StringColumn) -> list[int]:
    """Return the indices of the strings that occur in a column, in ascending order."""
    return np.flatnonzero(np.bincount(view_of(values), minlength=1)).tolist()


def recoded(
    values: ColumnValues, strings: StringTable, names: Mapping[str, str] | None = None
) -> StringColumn:
    """Return a column of strings with indices of a string table, which is extended.

    Args:
        values: the column.
        strings: the string table.
        names: strings that replace others.
    """
    names = {} if names is None else names
    if not isinstance(values, StringColumn):
        codes = strings.codes([names.get(str(each), str(each)) for each in values])
        return StringColumn(codes, strings.strings)
    used = used_codes(values)
    new = np.zeros(len(values.strings) or 1, dtype=np.int64)
    # One look-up for each distinct string rather than for each row.
    texts = [values.strings[code] for code in used]
    new[used] = [strings.code(names.get(text, text)) for text in texts]
    codes, view = zeros(len(values))
    np.take(new, view_of(values), out=view, mode="clip")
    return StringColumn(codes, strings.strings)
