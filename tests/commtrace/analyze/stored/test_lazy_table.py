"""Tables whose columns are read when they are used: equal to DataFrames, reading no more."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

from commtrace.analyze.stored.lazy_table import LazyTable
from commtrace.tracefile import StringColumn

TABLE = pd.DataFrame(
    {
        "rank": [1, 0, 1, 2],
        "kind": pd.Categorical(["a", "b", "b", "a"], categories=["c", "b", "a"]),
        "time": [0.5, 1.5, np.nan, 3.5],
    },
    index=pd.RangeIndex(10, 14),
)


class Reader:
    """Reads columns of `TABLE`, and keeps their names."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.num_times = 0
        self.table = LazyTable([*map(str, TABLE)], TABLE.index, self.read)

    def read(self, names: Sequence[str]) -> dict[str, Any]:
        self.names += names
        self.num_times += 1
        return {name: TABLE[name].array for name in names}


FEW: dict[str, tuple[Callable[[Any], Any], set[str]]] = {
    "its size": (lambda t: (len(t), t.empty, [*t.columns], [*t.index]), set()),
    "a column": (lambda t: t["rank"], {"rank"}),
    "columns": (lambda t: t[["rank", "time"]], {"rank", "time"}),
    "a column of some rows": (lambda t: t[t["rank"] == 1]["time"], {"rank", "time"}),
    "rows by labels": (lambda t: t.loc[pd.Index([12, 10]), "time"], {"time"}),
    "rows of rows": (lambda t: t[t["rank"] > 0].loc[[13]][["rank"]], {"rank"}),
    "rows by a mask": (lambda t: t.loc[t["rank"] == 1, ["time"]], {"rank", "time"}),
    "a further column": (lambda t: t.assign(more=t["rank"] * 2)[["more"]], {"rank"}),
    "sums": (lambda t: t.groupby("kind", observed=True)["rank"].sum(), {"kind", "rank"}),
    "sums by a Series": (lambda t: t.groupby(t["rank"] > 0)["time"].max(), {"rank", "time"}),
    "sizes": (lambda t: t.groupby(["rank"], sort=False).size(), {"rank"}),
    "rows of groups": (
        lambda t: [
            (key, rows["rank"].tolist()) for key, rows in t.groupby(["kind"], observed=True)
        ],
        {"kind", "rank"},
    ),
}


@pytest.mark.parametrize("name", FEW)
def test_only_the_columns_that_are_used_are_read(name: str) -> None:
    function, columns = FEW[name]
    reader = Reader()
    found, expected = function(reader.table), function(TABLE)
    if isinstance(expected, (pd.Series, pd.DataFrame)):
        assert found.equals(expected)
        assert found.index.equals(expected.index)
    else:
        assert found == expected
    assert sorted(reader.names) == sorted(columns)


ALL: dict[str, Callable[[Any], Any]] = {
    "sorted": lambda t: t.sort_values("time"),
    "joined": lambda t: t.join(pd.Series([1], index=[11], name="x")),
    "merged": lambda t: t.merge(pd.DataFrame({"rank": [1], "host": ["h"]})),
    "concatenated": lambda t: pd.concat([t, t]),
    "last of groups": lambda t: t.groupby("rank").tail(1),
    "of other types": lambda t: t.astype({"kind": object}),
    "a slice": lambda t: t.iloc[1:3],
    "a row": lambda t: t.loc[11],
    "without a column": lambda t: t.drop(columns="kind"),
    "a copy": lambda t: t.copy(),
    "a scalar added": lambda t: t.assign(x=1),
    "pickled": lambda t: pickle.loads(pickle.dumps(t)),
}


@pytest.mark.parametrize("name", ALL)
def test_anything_else_is_that_of_a_table_in_memory(name: str) -> None:
    found, expected = ALL[name](Reader().table), ALL[name](TABLE)
    assert type(found) is type(expected)
    assert found.equals(expected)


def test_each_column_is_read_once() -> None:
    reader = Reader()
    for _ in range(2):
        assert reader.table["rank"].sum() == 4
        assert reader.table[reader.table["rank"] == 1]["rank"].sum() == 2
    assert reader.names == ["rank"]


def test_columns_are_read_at_once() -> None:
    reader = Reader()
    assert reader.table["time"].name == "time"
    assert [*reader.table[["rank", "kind", "time"]]] == ["rank", "kind", "time"]
    assert reader.names == ["time", "rank", "kind"]
    assert reader.num_times == 2


def test_texts_become_categories() -> None:
    codes: Any = np.array([1, 0, 1])
    texts = StringColumn(codes, ["b", "a", "c"])
    table = LazyTable(["kind"], pd.RangeIndex(3), lambda names: {"kind": texts})
    assert table["kind"].tolist() == ["a", "b", "a"]
    assert [*table["kind"].cat.categories] == ["a", "b"]


def test_unknown_names_are_errors_as_of_any_table() -> None:
    with pytest.raises(KeyError, match="host"):
        Reader().table["host"]
    with pytest.raises(KeyError, match="99"):
        Reader().table.loc[[99], "rank"]


def test_a_shared_table_cannot_be_modified() -> None:
    with pytest.raises(TypeError, match="assign"):
        Reader().table["rank"] = 3
