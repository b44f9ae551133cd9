"""Embedding tables sharded by rows, by columns, by both, and by rows twice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from dtensor_core import DTensor, Replicate, Shard, distribute_tensor
from dtensor_core.testing.threads import kept_mesh, on_threads
from tests.dtensor_core.operators.agreement import assert_agrees

ROWS, COLUMNS, REPLICATED = Shard(0), Shard(1), Replicate()
TABLES = [(ROWS, COLUMNS), (COLUMNS, ROWS), (ROWS, ROWS), (ROWS, REPLICATED), (COLUMNS, COLUMNS)]
INDICES = [(REPLICATED, REPLICATED), (Shard(0), REPLICATED), (Shard(0), Shard(1))]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "a row without gradient": {"padding_idx": 3},
    "gradients by frequency": {"scale_grad_by_freq": True},
}


def _table() -> torch.Tensor:
    """Create eleven rows of five: no axis of two divides either."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(11, 5, generator=generator, dtype=torch.float64, requires_grad=True)


def _indices() -> torch.Tensor:
    """Index every row, one of them four times."""
    return torch.tensor([[0, 3, 10], [3, 5, 1], [2, 4, 6], [7, 8, 9], [3, 3, 0]])


@pytest.mark.parametrize("table", TABLES, ids=str)
@pytest.mark.parametrize("indices", INDICES, ids=str)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
def test_rows_and_their_gradients_are_those_of_one_device(
    table: Any, indices: Any, options: dict[str, Any]
) -> None:
    assert_agrees(
        lambda weight, index: F.embedding(index, weight, **options).sin(),
        [_table(), _indices()],
        [table, indices],
        mesh_shape=(2, 2),
    )


@pytest.mark.parametrize("table", TABLES, ids=str)
def test_rows_are_made_shorter_in_place_as_on_one_device(table: Any) -> None:
    alone = torch.nn.Parameter(_table().detach())
    expected = F.embedding(_indices(), alone, max_norm=1.0)

    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((2, 2))
        weight = torch.nn.Parameter(
            distribute_tensor(_table().detach(), mesh, table, src_data_rank=None)
        )
        index = distribute_tensor(_indices(), mesh, [REPLICATED, REPLICATED], src_data_rank=None)
        rows: Any = F.embedding(index, weight, max_norm=1.0)
        torch.testing.assert_close(rows.full_tensor(), expected)
        assert isinstance(weight, DTensor)
        assert weight.placements == table
        torch.testing.assert_close(weight.full_tensor(), alone)

    body()
