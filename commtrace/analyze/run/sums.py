"""Sums of calls by several columns at once, whose combinations are numbered first.

    kind        group    number
    all_reduce  tp0      0
    all_gather  tp0      1
    all_reduce  tp0      0

Grouping by each column takes longer than all sums. Codes of categories and integers of a small
range are numbers already, so that combinations of them need no hash table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

_MOST = 1 << 20
"""Number of possible values up to which a table of all of them is made."""


def numbered_rows(keys: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return a number for each row, the same for equal keys, and the first row of each number.

    Numbers are dense, in the order of these rows.

    Args:
        keys: A value for each row, as Series or arrays: categories, integers, or others.
    """
    number, size = np.zeros(len(keys[0]), dtype="int64"), 1
    for key in keys:
        codes, num = _codes(key)
        if num == 1:
            continue
        if size * num > _MOST:
            number, size = _dense(number, size)
        number, size = (number * num + codes if size > 1 else codes), size * num
    number, size = _dense(number, size)
    firsts = np.zeros(size, dtype="int64")
    # Of several values for one place, the last remains.
    firsts[number[::-1]] = np.arange(len(number))[::-1]
    order = np.argsort(firsts)
    places = np.empty(size, dtype="int64")
    places[order] = np.arange(size)
    return places[number], firsts[order]


def _codes(key: Any) -> tuple[np.ndarray, int]:
    """Return integers from 0 that differ where the values of a key differ, and their bound."""
    if isinstance(key.dtype, pd.CategoricalDtype):
        values = pd.Series(key).cat
        # Unknown values have the code -1.
        return values.codes.to_numpy("int64") + 1, len(values.categories) + 1
    values = np.asarray(key)
    if values.dtype.kind in "iu" and len(values):
        least, most = int(values.min()), int(values.max())
        if most - least < _MOST:
            return values.astype("int64") - least, most - least + 1
    codes, texts = pd.factorize(values, use_na_sentinel=False)
    return codes.astype("int64"), max(len(texts), 1)


def _dense(number: np.ndarray, size: int) -> tuple[np.ndarray, int]:
    """Return the numbers that occur as those from 0, in their order, and how many there are."""
    if size > _MOST:
        codes, values = pd.factorize(number)
        return codes.astype("int64"), len(values)
    used = np.flatnonzero(np.bincount(number, minlength=size))
    if len(used) == size:
        return number, size
    new = np.zeros(size, dtype="int64")
    new[used] = np.arange(len(used))
    return new[number], len(used)


def sums_by(columns: Mapping[str, Any], keys: Sequence[Any], min_count: int = 0) -> pd.DataFrame:
    """Return the sums of columns by combinations of keys, in the order of their first rows.

    Args:
        columns: Numbers of each row, by name; nan is left out.
        keys: Series with a value for each row, whose names the index has.
        min_count: Number of values below which a sum of floats is nan.
    """
    number, firsts = numbered_rows(keys)
    index = [key.iloc[firsts] for key in keys]
    return sums_of(columns, number, len(firsts), min_count).set_axis(
        pd.Index(index[0]) if len(index) == 1 else pd.MultiIndex.from_arrays(index)
    )


def sums_of(
    columns: Mapping[str, Any], number: np.ndarray, num: int, min_count: int = 0
) -> pd.DataFrame:
    """Return the sums of columns by the number of each row, below `num`; see `sums_by`."""
    return pd.DataFrame(
        {
            name: _sums(np.asarray(values), number, num, min_count)
            for name, values in columns.items()
        }
    )


_EXACT = 2.0**53
"""Sum of integers below which floats are exact, and faster to add."""


def _sums(values: np.ndarray, number: np.ndarray, size: int, min_count: int) -> np.ndarray:
    if values.dtype.kind in "iu":
        if np.abs(values.astype("float64")).sum() < _EXACT:
            return np.bincount(number, values, size).astype("int64")
        sums = np.zeros(size, dtype="int64")
        np.add.at(sums, number, values)
        return sums
    is_known = ~np.isnan(values)
    if is_known.all():
        return np.bincount(number, values, size)
    number = number[is_known]
    sums, num_known = np.bincount(number, values[is_known], size), np.bincount(number, None, size)
    return np.where(num_known < min_count, np.nan, sums)
