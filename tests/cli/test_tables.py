"""What a table leaves out."""

from __future__ import annotations

import pandas as pd
import pytest

from commtrace_cli.tables import cut

TREE = pd.DataFrame({"depth": [0, 1, 2, 2, 1, 2]})


@pytest.mark.parametrize(
    ("rows", "kept"), [(6, [0, 1, 2, 3, 4, 5]), (5, [0, 1, 4]), (3, [0, 1, 4]), (2, [0]), (1, [0])]
)
def test_of_a_tree_whole_levels_are_kept(rows: int, kept: list[int]) -> None:
    assert cut(TREE, rows).index.tolist() == kept


def test_of_a_list_the_first_rows_are_kept() -> None:
    assert cut(pd.DataFrame({"kind": list("abc")}), 2)["kind"].tolist() == ["a", "b"]
