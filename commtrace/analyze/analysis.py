"""What an analysis is: a question, the function that answers it, and the columns of the answer.

Law: the function's table has exactly the listed columns, in order, with the dtypes of their types.

Nanoseconds and bytes are exact 64-bit integers, and no sum of them may wrap around: what is summed
goes through `addable` first, products and squares are taken of floats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from commtrace.analyze.frame import Frames
from commtrace.schema import Column

_DTYPES = {int: "int64", float: "float64", bool: "bool", str: str}
_MOST = 2**63 - 1024
"""The largest integer of 64 bits that is a float as well."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """One question that a run can be asked; `columns` documents the answer, with units."""

    name: str
    title: str
    question: str
    function: Callable[[Frames], pd.DataFrame]
    columns: tuple[Column, ...]


def typed(table: pd.DataFrame, columns: Sequence[Column]) -> pd.DataFrame:
    """`table` with exactly these columns and their dtypes, its rows numbered from 0.

    A column that an empty table lacks is added; in a table with rows it is an error.
    """
    names = [column.name for column in columns]
    if table.empty:
        table = table.reindex(columns=names)
    wide = {
        column.name: table[column.name].clip(-_MOST, _MOST)
        for column in columns
        if column.type is int and table[column.name].dtype.kind == "f"
    }
    return (
        table[names]
        .assign(**wide)
        .astype({column.name: _DTYPES[column.type] for column in columns})
        .reset_index(drop=True)
    )


def addable(values: pd.Series) -> pd.Series:
    """`values` such that no sum of some of them overflows: as floats where integers might.

    Floats lose what is below 1e-16 of the sum; a sum of integers past 2**63 would be negative.
    """
    if values.dtype.kind not in "iu" or np.abs(values.to_numpy("float64")).sum() < _MOST:
        return values
    return values.astype("float64")
