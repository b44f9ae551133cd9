"""Rows and columns that a table omits."""

from __future__ import annotations

import pandas as pd
import pytest

from commtrace.analyze import CATALOG
from commtrace_cli.tables import measures_table, truncated
from tests.commtrace.analyze.rows import START_NS, call, rank_row, run_of, step

TREE = pd.DataFrame({"depth": [0, 1, 2, 2, 1, 2]})


@pytest.mark.parametrize(
    ("rows", "retained"),
    [(6, [0, 1, 2, 3, 4, 5]), (5, [0, 1, 4]), (3, [0, 1, 4]), (2, [0]), (1, [0])],
)
def test_of_a_tree_complete_levels_are_kept(rows: int, retained: list[int]) -> None:
    assert truncated(TREE, rows).index.tolist() == retained


def test_of_a_list_the_first_rows_are_kept() -> None:
    assert truncated(pd.DataFrame({"kind": list("abc")}), 2)["kind"].tolist() == ["a", "b"]


def test_shares_of_steps_are_reported_of_a_run_whose_length_is_not_known() -> None:
    frames = run_of(
        [call(at=0, until=5, call_ns=5, blocked_ns=5, step=0)],
        ranks=[rank_row(0, end_ns=START_NS)],
        steps=[step(0, 0, 0, 9)],
    )
    analysis = CATALOG["by_kind"]
    drawn = measures_table(200, analysis, analysis.function(frames)).table
    headings = [str(column.header) for column in drawn.columns]
    assert "of the steps" in headings
    assert "of run" not in headings
