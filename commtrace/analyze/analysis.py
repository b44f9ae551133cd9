"""What an analysis is: a question, the function that answers it, and the columns of the answer.

Law: the function's table has exactly the listed columns, in order, with the dtypes of their types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from commtrace.analyze.frame import Frames
from commtrace.schema import Column

_DTYPES = {int: "int64", float: "float64", bool: "bool", str: str}


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
    return (
        table[names]
        .astype({column.name: _DTYPES[column.type] for column in columns})
        .reset_index(drop=True)
    )
