"""The `Analysis` type: a question, the function that answers it, and the columns of the answer.

An analysis' function returns exactly the listed columns, in order, with the dtypes of their types.

Nanoseconds and bytes are exact 64-bit integers whose sums must not wrap around. Values are passed
through `addable` before they are summed; products and squares are computed in floats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from commtrace.analyze.run.frame import Frames
from commtrace.schema import Column

_DTYPES = {int: "int64", float: "float64", bool: "bool", str: str}
_MOST = 2**63 - 1024
"""Largest 64-bit integer that is exactly representable as a float."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """A question about a run and the function that answers it.

    Attributes:
        name: Key in the catalog, also used by the command line.
        title: Heading shown above the table.
        question: The question as a sentence.
        function: Computes the answer from the run's tables.
        columns: Schema of the answer, with units.
        topic: Topic of the page under which its table is listed; empty if it is not a table there.
        shown: Names of the columns that the page shows, in order; all others can be switched on.
        needs: Table of the schema without which the page leaves it out; empty if none.
    """

    name: str
    title: str
    question: str
    function: Callable[[Frames], pd.DataFrame]
    columns: tuple[Column, ...]
    topic: str = ""
    shown: str = ""
    needs: str = ""


def typed(table: pd.DataFrame, columns: Sequence[Column]) -> pd.DataFrame:
    """Return `table` with exactly these columns and their dtypes, its rows numbered from 0.

    A column missing from an empty table is added; in a table with rows it is an error.
    """
    if table.empty:
        return _without_rows(tuple(columns)).copy()
    values = {column.name: table[column.name] for column in columns}
    for column in columns:
        given = values[column.name]
        if column.type is int and given.dtype.kind == "f":
            # A conversion of a float beyond 64 bits would give an arbitrary integer.
            given = given.clip(-_MOST, _MOST)
        if given.dtype != _DTYPES[column.type]:
            given = given.astype(_DTYPES[column.type])
        values[column.name] = given
    # Arrays, not Series, which would be aligned to each other's rows.
    return pd.DataFrame({name: given.array for name, given in values.items()})


@lru_cache(maxsize=256)
def _without_rows(columns: tuple[Column, ...]) -> pd.DataFrame:
    return pd.DataFrame({each.name: pd.Series(dtype=_DTYPES[each.type]) for each in columns})


def addable(values: pd.Series) -> pd.Series:
    """Return `values` in a dtype in which no partial sum overflows: floats where integers might.

    Floats drop parts below 1e-16 of the sum; a sum of integers beyond 2**63 would wrap around.
    """
    if values.dtype.kind not in "iu" or np.abs(values.to_numpy("float64")).sum() < _MOST:
        return values
    return values.astype("float64")
