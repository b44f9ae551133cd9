"""How single cells look, and what a table leaves out."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from commtrace_cli.tables import cut, text_of_cell


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1_500_000, "bytes", "1.5 MB"),
        (2_500_000, "ns", "2.5 ms"),
        (3.2e9, "bytes/s", "3.2 GB/s"),
        (0.4123, "1", "41.2%"),
        (1234.0, "", "1,234"),
        (0.25, "", "0.25"),
        (math.nan, "bytes", "–"),
        (math.nan, "", "–"),
        ("all_reduce", "", "all_reduce"),
        ("", "", "–"),
    ],
)
def test_a_cell_reads_as_its_unit_says(value: float | str, unit: str, text: str) -> None:
    assert text_of_cell(value, unit) == text


TREE = pd.DataFrame({"depth": [0, 1, 2, 2, 1, 2]})


@pytest.mark.parametrize(
    ("rows", "kept"), [(6, [0, 1, 2, 3, 4, 5]), (5, [0, 1, 4]), (3, [0, 1, 4]), (2, [0]), (1, [0])]
)
def test_of_a_tree_whole_levels_are_kept(rows: int, kept: list[int]) -> None:
    assert cut(TREE, rows).index.tolist() == kept


def test_of_a_list_the_first_rows_are_kept() -> None:
    assert cut(pd.DataFrame({"kind": list("abc")}), 2)["kind"].tolist() == ["a", "b"]
