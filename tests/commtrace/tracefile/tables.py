"""Random tables of a trace, for laws that hold for all of them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from commtrace.schema import TABLES, Column

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(st.characters(), max_size=8)

_VALUES = {
    int: st.one_of(st.integers(-1, 100), INT64),
    bool: st.booleans(),
    str: st.one_of(st.sampled_from(["", "all_reduce", "aten.mm.default"]), TEXT),
    float: st.floats(allow_nan=False),
}


def rows_of(table: str, max_size: int = 12) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    """Any rows of a table."""
    return st.lists(st.tuples(*map(_values_of, TABLES[table])), max_size=max_size)


def _values_of(column: Column) -> st.SearchStrategy[Any]:
    return _VALUES[column.type]


def tables() -> st.SearchStrategy[dict[str, list[tuple[Any, ...]]]]:
    """Any rows of every table."""
    return st.fixed_dictionaries({name: rows_of(name, 4) for name in TABLES})
