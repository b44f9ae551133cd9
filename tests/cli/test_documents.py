"""Documents have the exact numbers of tables."""

from __future__ import annotations

import json
import math

import pandas as pd

from commtrace.analyze import CATALOG
from commtrace_cli.documents import document


def test_numbers_are_exact_and_unknown_ones_null() -> None:
    table = pd.DataFrame(
        {
            "share": [1.23456789012345e-9, math.nan, math.inf],
            "wire_bytes": [2**62 + 1, -1, 0],
            "kind": pd.Categorical(["all_reduce", None, "all_reduce"]),
            "is_async": [True, False, True],
        }
    )
    found = document({}, {CATALOG["by_kind"]: table})["by_kind"]["rows"]
    rows = [list(row.values()) for row in json.loads(json.dumps(found, allow_nan=False))]
    assert rows == [
        [1.23456789012345e-9, 2**62 + 1, "all_reduce", True],
        [None, -1, None, False],
        [None, 0, "all_reduce", True],
    ]
    assert found[0].keys() == {*table}


def test_a_table_without_rows_is_empty() -> None:
    table = pd.DataFrame({"share": pd.Series(dtype=float)})
    assert document({}, {CATALOG["by_kind"]: table})["by_kind"]["rows"] == []
