"""Divergence by module and step, and along the program, in tables of bounded size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from commtrace.analyze import Frames
from commtrace.analyze.values import ValueComparison, compare
from commtrace.analyze.values.divergence import MapRow, along_the_program, divergence
from tests.commtrace.analyze.values.rows import Tensors, held_by_one

BLOCKS = ("up", "down")


def training(num_layers: int = 2, num_steps: int = 3) -> list[tuple[dict[str, Any], torch.Tensor]]:
    """Parameters, then in each step outputs forwards, and gradients of outputs backwards."""
    generator = torch.Generator().manual_seed(0)
    modules = [f"layers.{layer}.{block}" for layer in range(num_layers) for block in BLOCKS]
    places = [
        {
            "role": "parameter",
            "phase": "forward",
            "step": 0,
            "module": name,
            "name": f"{name}.weight",
        }
        for name in reversed(modules)
    ]
    for step in range(num_steps):
        places += [{"module": name, "step": step, "phase": "forward"} for name in modules]
        places += [
            {"module": name, "step": step, "phase": "backward", "role": "output_gradient"}
            for name in reversed(modules)
        ]
    return [(place, torch.randn(4, 4, generator=generator)) for place in places]


def changed(values: Tensors, changes: Any, **which: Any) -> Frames:
    """The run with the tensors changed that have these columns."""
    return held_by_one(
        [
            (columns, changes(value) if which.items() <= columns.items() else value)
            for columns, value in values
        ]
    )


@pytest.fixture
def right() -> Frames:
    return held_by_one(training())


def wrong_in_the_middle(right: Frames) -> ValueComparison:
    wrong = changed(training(), lambda x: 2 * x, module="layers.1.up", step=1, phase="backward")
    return compare(right, wrong)


def test_rows_are_in_the_order_of_execution(right: Frames) -> None:
    rows = divergence(compare(right, right), right).rows
    forward = ["layers.0.up", "layers.0.down", "layers.1.up", "layers.1.down"]
    assert [(row.phase, row.module) for row in rows] == [
        *(("forward", name) for name in forward),
        *(("backward", name) for name in reversed(forward)),
    ]


def test_a_cell_has_its_worst_pair(right: Frames) -> None:
    comparison = wrong_in_the_middle(right)
    found = divergence(comparison, right)
    assert found.columns == ((0, 0), (1, 1), (2, 2))
    assert len(found.cells) == 8 * 3
    wrong = found.cells[found.cells["num_wrong"] > 0]
    (cell,) = wrong.to_dict("records")
    row = found.rows[cell["row"]]
    assert (row.phase, row.module, cell["column"]) == ("backward", "layers.1.up", 1)
    pair = comparison.pairs.loc[cell["worst"]]
    assert pair["is_wrong"]
    assert cell["excess"] == pair["excess"] > 1000
    assert found.cell_of_pair[cell["worst"]] == wrong.index[0]
    others = found.cells[found.cells["num_wrong"] == 0]
    assert (others["excess"] == 0).all()
    # The parameters of step 0 are beside the outputs.
    first = found.cells[found.cells["column"] == 0]
    assert first["num_pairs"].tolist() == [2, 2, 2, 2, 1, 1, 1, 1]


def test_what_has_no_counterpart_is_unknown_and_not_equal(right: Frames) -> None:
    kept = [each for each in training() if each[0]["module"] != "layers.0.up"]
    comparison = compare(right, held_by_one(kept))
    found = divergence(comparison, right)
    missing = [row.module == "layers.0.up" for row in found.rows]
    cells = found.cells[[missing[row] for row in found.cells["row"]]]
    assert len(cells) == 6
    assert cells["excess"].isna().all()
    assert (cells["worst"] == -1).all()
    assert (cells["num_pairs"] == 0).all()
    assert (cells["num_unpaired"] > 0).all()


def test_elements_that_are_not_finite_exceed_any_tolerance() -> None:
    def at_the_first(fill: float) -> Frames:
        def filled(x: torch.Tensor) -> torch.Tensor:
            return x.index_put((torch.tensor(0), torch.tensor(0)), torch.tensor(fill))

        return changed(training(), filled, module="layers.0.up", step=2, phase="forward")

    right = at_the_first(0.0)
    comparison = compare(right, at_the_first(torch.nan))
    (worst,) = divergence(comparison, right).cells.query("num_wrong > 0")["excess"]
    assert worst == np.inf
    assert along_the_program(comparison)["excess"].max() < 1e-6


@pytest.mark.parametrize("most_rows", [8, 4, 2])
@pytest.mark.parametrize("most_columns", [3, 2, 1])
def test_a_map_has_no_more_rows_and_columns_than_asked_for(
    right: Frames, most_rows: int, most_columns: int
) -> None:
    comparison = wrong_in_the_middle(right)
    found = divergence(comparison, right, most_rows=most_rows, most_columns=most_columns)
    assert len(found.rows) <= most_rows
    assert len(found.columns) <= most_columns
    assert found.cells["num_pairs"].sum() == comparison.num_paired
    assert found.cells["num_wrong"].sum() == 1
    assert found.depth == {8: -1, 4: 2, 2: 1}[most_rows]
    (cell,) = found.cells[found.cells["num_wrong"] > 0].to_dict("records")
    row, (first, last) = found.rows[cell["row"]], found.columns[cell["column"]]
    assert row.phase == "backward"
    assert "layers.1.up".startswith(row.module)
    assert first <= 1 <= last


def test_adjacent_modules_share_a_row_if_no_part_of_their_paths_is_common() -> None:
    values = [({"module": f"block{number}"}, torch.ones(2)) for number in range(10)]
    run = held_by_one(values)
    found = divergence(compare(run, run), run, most_rows=4)
    assert found.rows == (
        MapRow("forward", "block0", "block2"),
        MapRow("forward", "block3", "block5"),
        MapRow("forward", "block6", "block8"),
        MapRow("forward", "block9", "block9"),
    )


def test_along_the_program_the_worst_of_each_stretch_is_kept(right: Frames) -> None:
    comparison = wrong_in_the_middle(right)
    table = along_the_program(comparison, most=7)
    assert len(table) == 7
    assert table["first"].tolist() == [0, 4, 8, 12, 16, 20, 24]
    assert table["last"].iloc[-1] == comparison.num_paired - 1
    (place,) = np.flatnonzero(table["num_wrong"])
    pair = comparison.pairs.loc[table["worst"][place]]
    assert pair["is_wrong"]
    assert table["excess"][place] == pytest.approx(pair["excess"])
