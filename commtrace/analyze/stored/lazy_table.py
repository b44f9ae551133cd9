"""Tables whose columns are read when they are first used.

An analysis uses few of the columns of table `comm`. A `LazyTable` is a DataFrame for which

    table["issue_ns"]             reads this column
    table[["rank", "id"]]         reads these columns, at once
    table[mask], table.loc[rows]  read nothing yet: the result is such a table of some rows
    table.assign(name=values)     reads nothing yet, either
    table.groupby("group")        reads the keys, and the columns that are asked for
    anything else                 reads all columns

so that analyses are written as for any DataFrame. It cannot be modified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.extensions import ExtensionArray

from commtrace.analyze.run.frame import categorical
from commtrace.tracefile import StringColumn

ReadColumns = Callable[[Sequence[str]], Mapping[str, Any]]
"""Returns the values of columns by their names, texts as categories or as a `StringColumn`."""


class LazyTable(pd.DataFrame):
    """DataFrame whose columns are read when they are first used.

    Args:
        names: Names of the columns.
        index: Labels of the rows.
        read: Reads columns.
    """

    _names: tuple[str, ...]
    _labels: pd.Index
    _read: ReadColumns
    _columns_read: dict[str, pd.Series]
    _all: pd.DataFrame | None

    def __new__(cls, *args: Any) -> LazyTable:
        """Return an object that is not a pandas table yet."""
        return object.__new__(cls)

    def __init__(self, names: Sequence[str], index: pd.Index, read: ReadColumns) -> None:
        # Attributes of a DataFrame are columns, unless they are set past it.
        pandas: Any = pd
        vars(self).update(
            _names=tuple(names),
            _labels=index,
            _read=read,
            _columns_read={},
            _all=None,
            _attrs={},
            _flags=pandas.Flags(self, allows_duplicate_labels=True),
        )

    @property
    def _constructor(self) -> Callable[..., pd.DataFrame]:
        return pd.DataFrame

    @property
    def _mgr(self) -> Any:  # type: ignore[override] - pandas' manager of all columns
        return self._table._mgr

    @property
    def _table(self) -> pd.DataFrame:
        """All columns."""
        if self._all is None:
            vars(self)["_all"] = self[[*self._names]]
        assert self._all is not None
        return self._all

    def __reduce__(self) -> Any:
        # Other processes get the columns.
        return pd.DataFrame, (self._table,)

    def __len__(self) -> int:
        return len(self._labels)

    @property
    def index(self) -> pd.Index:  # type: ignore[override] - of a table that is not read
        """Labels of the rows."""
        return self._labels

    @property
    def columns(self) -> pd.Index:  # type: ignore[override] - of a table that is not read
        """Names of the columns."""
        return pd.Index(self._names)

    @property
    def empty(self) -> bool:
        """True without any row."""
        return not len(self._labels)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError(f"column {key!r} cannot be set: the table is shared; `assign` returns one")

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str) and key in self._names:
            return self._read_once([key])[key]
        if isinstance(key, list) and set(key) <= set(self._names):
            known = self._read_once(key)
            return pd.DataFrame({each: known[each] for each in key}, index=self._labels)
        if isinstance(key, (pd.Series, np.ndarray)) and key.dtype == bool:
            chosen = np.asarray(key)
            return self if chosen.all() and len(chosen) else self._at(np.flatnonzero(chosen))
        return self._table[key]

    def _read_once(self, names: Sequence[str]) -> Mapping[str, pd.Series]:
        """Return the columns that are read so far, with some columns among them."""
        known = self._columns_read
        if new := [name for name in names if name not in known]:
            for name, read in self._read(new).items():
                values = categorical(read) if isinstance(read, StringColumn) else read
                known[name] = pd.Series(values, index=self._labels, name=name, copy=False)
        return known

    def _at(self, places: np.ndarray) -> LazyTable:
        """Return the rows at some places."""

        def read(names: Sequence[str]) -> Mapping[str, Any]:
            known = self._read_once(names)
            return {name: known[name].array.take(places) for name in names}

        return LazyTable(self._names, self._labels[places], read)

    def assign(self, **columns: Any) -> pd.DataFrame:
        """Return the table with further columns."""
        if not all(
            isinstance(e, (pd.Series, np.ndarray, ExtensionArray)) for e in columns.values()
        ):
            return self._table.assign(**columns)
        added = pd.DataFrame(columns, index=self._labels)
        names = tuple(dict.fromkeys((*self._names, *columns)))

        def read(names: Sequence[str]) -> Mapping[str, Any]:
            known = self._read_once([name for name in names if name not in added])
            return {name: (added if name in added else known)[name].array for name in names}

        return LazyTable(names, self._labels, read)

    @property
    def loc(self) -> Any:  # type: ignore[override] - by labels or a mask
        """Rows by their labels or by a mask, and columns."""
        return _LazyRows(self)

    def groupby(self, by: Any, **options: Any) -> Any:  # type: ignore[override] - of columns
        """Return groups of rows by the values of columns or Series."""
        keys = [by] if isinstance(by, (str, pd.Series)) else by
        names = [each for each in keys if isinstance(each, str)]
        if set(names) <= set(self._names):
            return _LazyGroups(self, by, names, options)
        return self._table.groupby(by, **options)


class _LazyRows:
    """`loc` of a lazy table."""

    def __init__(self, table: LazyTable) -> None:
        self._table = table

    def __getitem__(self, key: Any) -> Any:
        rows, columns = key if isinstance(key, tuple) else (key, None)
        table = self._table
        if isinstance(rows, (pd.Series, np.ndarray)) and rows.dtype == bool:
            chosen = table[rows]
        elif isinstance(rows, (pd.Index, pd.Series, np.ndarray, list)):
            labels = pd.Index(rows)
            places = table.index.get_indexer(labels)
            if len(places) and places.min() < 0:
                raise KeyError(labels[places < 0][0])
            chosen = table._at(places)
        else:
            return table._table.loc[key]
        return chosen if columns is None else chosen[columns]


class _LazyGroups:
    """`groupby` of a lazy table: the groups as lazy tables, or operations on some columns."""

    def __init__(self, table: LazyTable, by: Any, names: list[str], options: Any) -> None:
        self._table, self._by, self._names, self._options = table, by, names, options

    def _of(self, columns: Sequence[str]) -> Any:
        chosen = [*dict.fromkeys((*self._names, *columns))]
        return self._table[chosen].groupby(self._by, **self._options)

    def __iter__(self) -> Iterator[tuple[Any, LazyTable]]:
        for key, rows in self._of(()):
            yield key, self._table._at(self._table.index.get_indexer(rows.index))

    def __getitem__(self, columns: Any) -> Any:
        return self._of([columns] if isinstance(columns, str) else columns)[columns]

    def __getattr__(self, name: str) -> Any:
        of_keys = name in ("size", "ngroup", "cumcount", "groups", "indices", "ngroups")
        return getattr(self._of(() if of_keys else [*map(str, self._table.columns)]), name)
