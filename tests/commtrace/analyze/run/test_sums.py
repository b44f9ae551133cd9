"""Sums by combinations of keys, against pandas' own groups."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from commtrace.analyze.run import sums
from commtrace.analyze.run.sums import numbered_rows, sums_by

ROWS = 500


def _keys(seed: int) -> list[pd.Series]:
    chance = np.random.default_rng(seed)
    texts = pd.Categorical(chance.choice([*"abc"], ROWS), categories=pd.Index([*"abc", "unused"]))
    return [
        pd.Series(texts, name="kind"),
        pd.Series(chance.integers(-1, 3, ROWS), name="step"),
        pd.Series(chance.choice([0, 1 << 40, -1 << 40], ROWS), name="bytes"),
        pd.Series(np.full(ROWS, 7), name="same"),
        pd.Series(chance.choice(["x", "y"], ROWS).astype(object), name="text"),
    ]


@pytest.mark.parametrize("most", [2, 10, 1 << 20])
@pytest.mark.parametrize("num_keys", [1, 2, 5])
def test_rows_of_equal_keys_have_one_number_in_the_order_of_first_rows(
    most: int, num_keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "_MOST", most)
    keys = _keys(num_keys)[:num_keys]
    number, firsts = numbered_rows(keys)
    expected = pd.DataFrame(keys).T.groupby([key.name for key in keys], sort=False).ngroup()
    assert number.tolist() == expected.tolist()
    assert firsts.tolist() == np.flatnonzero(~pd.Series(number).duplicated()).tolist()


def test_no_rows_have_no_numbers() -> None:
    number, firsts = numbered_rows([key.iloc[:0] for key in _keys(0)])
    assert len(number) == len(firsts) == 0
    assert sums_by({"n": np.zeros(0, "int64")}, [key.iloc[:0] for key in _keys(0)]).empty


def test_sums_are_those_of_pandas_and_integers_are_exact() -> None:
    keys = _keys(1)
    large = np.random.default_rng(2).integers(1 << 52, 1 << 53, ROWS)
    part = np.where(np.arange(ROWS) % 3 == 0, np.nan, 0.5)
    part[keys[0] == "a"] = np.nan
    found = sums_by({"large": large, "part": part}, keys[:2], min_count=1)
    columns = pd.DataFrame({"large": large, "part": part})
    expected = columns.groupby(keys[:2], observed=True, sort=False).sum(min_count=1)
    assert found.index.tolist() == expected.index.tolist()
    assert found.index.names == ["kind", "step"]
    assert found["large"].tolist() == expected["large"].tolist()
    np.testing.assert_array_equal(found["part"], expected["part"])
    assert sums_by({"part": part}, keys[:1]).loc["a", "part"] == 0
