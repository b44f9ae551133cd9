"""Selection of rows and columns of a table by conditions in text form.

    select(frames.comm, COMM, where=["kind=all_reduce", "payload_bytes>1000"], columns=["rank"])

A condition is a column, a comparison and a value. `=`, `!=`, `<`, `<=`, `>`, `>=` compare by the
column's type; `~` searches for a substring. Several conditions must all hold.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

import pandas as pd

from commtrace.errors import UsageError, unknown_name
from commtrace.schema import Column

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
CONTAINS = "~"

_CONDITION = re.compile(r"\s*(\w+)\s*(==|!=|<=|>=|=|<|>|~)\s*(.*?)\s*", re.DOTALL)
_EXAMPLES = {int: "3", float: "0.5", bool: "true", str: "text"}
_FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def select(
    table: pd.DataFrame,
    known: Sequence[Column],
    *,
    where: Sequence[str] = (),
    columns: Sequence[str] = (),
) -> pd.DataFrame:
    """Return the rows of `table` for which every condition holds, and of these the named columns.

    Args:
        table: The table to select from.
        known: The table's columns.
        where: Conditions, as described above.
        columns: Names of the columns to return; all if empty.

    Raises:
        UsageError: A column does not exist, or a condition cannot be parsed.
    """
    by_name = {column.name: column for column in known}
    holds = pd.Series(True, index=table.index)
    for text in where:
        holds &= _holds(table, by_name, text)
    for name in columns:
        _column(by_name, name)
    return table.loc[holds, list(columns) or list(by_name)]


def hints(table: pd.DataFrame, known: Sequence[Column], where: Sequence[str]) -> list[str]:
    """Return a sentence for each condition that holds for no row, naming the values that occur."""
    by_name = {column.name: column for column in known}
    if table.empty:
        return []
    return [_hint(table, by_name, text) for text in where if not _holds(table, by_name, text).any()]


MOST_VALUES = 8


def _hint(table: pd.DataFrame, by_name: dict[str, Column], text: str) -> str:
    name, comparison, expected = _parsed(text)
    values = sorted(set(table[name].astype(object)))
    if by_name[name].type is not str:
        return f"{text!r} holds for no row: {name} ranges from {values[0]} to {values[-1]}"
    known = [value for value in values if value]
    if not known:
        return f"{text!r} holds for no row: {name} is unknown for all rows"
    close = get_close_matches(expected, known, n=1)
    close_match = f"did you mean {name}{comparison}{close[0]}? " if close else ""
    more = ", ..." if len(known) > MOST_VALUES else ""
    values_text = ", ".join(known[:MOST_VALUES]) + more
    return f"{text!r} holds for no row: {close_match}{name} is one of {values_text}"


def _column(by_name: dict[str, Column], name: str) -> Column:
    if name not in by_name:
        raise unknown_name("column", name, by_name)
    return by_name[name]


def _holds(table: pd.DataFrame, by_name: dict[str, Column], text: str) -> pd.Series:
    name, comparison, value = _parsed(text)
    column = _column(by_name, name)
    values = table[name]
    if column.type is str:
        values = values.astype(object)
    if comparison == CONTAINS:
        return values.astype(str).str.contains(value, regex=False)
    return COMPARISONS[comparison](values, _value(column, value, text))


def _parsed(text: str) -> tuple[str, str, str]:
    """Split a condition into column, comparison and value."""
    matched = _CONDITION.fullmatch(text)
    if matched is None:
        raise UsageError(
            f"{text!r} is not a condition",
            why="a condition is a column, one of = != < <= > >= ~, and a value",
            attempt="'kind=all_reduce', 'payload_bytes>1000' or 'module~attention'",
        )
    name, comparison, value = matched.groups()
    return name, comparison, value


def _value(column: Column, value: str, text: str) -> Any:
    try:
        if column.type is bool:
            return _FLAGS[value.lower()]
        return column.type(value)
    except (KeyError, ValueError):
        raise UsageError(
            f"{text!r} is not a condition",
            found=f"{value!r} for {column.name}, whose values are of type {column.type.__name__}",
            attempt=f"{column.name}={_EXAMPLES[column.type]}",
        ) from None
