"""Bags of embeddings sharded by indices, by rows and by columns, and their communication."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from dtensor_core import DTensor, Partial, Replicate, Shard
from dtensor_core.testing.threads import kept_mesh, on_threads
from tests.dtensor_core.counting import Collectives
from tests.dtensor_core.operators.agreement import assert_agrees, laid_out

ROWS, COLUMNS, REPLICATED, PARTIAL = Shard(0), Shard(1), Replicate(), Partial()
INDICES = torch.tensor([0, 3, 10, 3, 5, 1, 2, 4, 6, 7, 8, 9, 3])
OFFSETS = torch.tensor([0, 2, 2, 7, 9])  # the second bag is empty
OPTIONS: dict[str, dict[str, Any]] = {
    "sum": {"mode": "sum"},
    "mean": {"mode": "mean"},
    "max": {"mode": "max"},
    "sum without a row": {"mode": "sum", "padding_idx": 3},
    "mean without a row": {"mode": "mean", "padding_idx": 3},
    "sum by frequency": {"mode": "sum", "scale_grad_by_freq": True},
    "sum with an end": {"mode": "sum", "include_last_offset": True},
}


def _table() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(11, 6, generator=generator, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
def test_bags_and_gradients_are_those_of_one_device(options: dict[str, Any]) -> None:
    def bags(weight: Any, indices: Any, offsets: Any) -> Any:
        return F.embedding_bag(indices, weight, offsets, **options).sin()

    offsets = OFFSETS
    if options.get("include_last_offset"):
        offsets = torch.cat([OFFSETS, torch.tensor([len(INDICES)])])
    tensors = [_table(), INDICES, offsets]
    for table, indices in ((ROWS, ROWS), (ROWS, REPLICATED), (COLUMNS, ROWS), (REPLICATED, ROWS)):
        assert_agrees(bags, tensors, [[table], [indices], [REPLICATED]])
    assert_agrees(
        bags, tensors, [[ROWS, COLUMNS], [REPLICATED] * 2, [REPLICATED] * 2], mesh_shape=(2, 2)
    )
    assert_agrees(
        bags, tensors, [[ROWS, ROWS], [REPLICATED, ROWS], [REPLICATED] * 2], mesh_shape=(2, 2)
    )


@pytest.mark.parametrize("table", [ROWS, COLUMNS, REPLICATED, PARTIAL], ids=str)
def test_weighted_bags_and_gradients_of_weights_are_those_of_one_device(table: Any) -> None:
    def bags(weight: Any, scale: Any, indices: Any, offsets: Any) -> Any:
        made = F.embedding_bag(indices, weight, offsets, mode="sum", per_sample_weights=scale)
        return made.sin()

    scale = torch.linspace(-1, 2, len(INDICES), dtype=torch.float64).requires_grad_()
    for sharding in (ROWS, REPLICATED, PARTIAL):
        assert_agrees(
            bags,
            [_table(), scale, INDICES, OFFSETS],
            [[table], [sharding], [REPLICATED], [REPLICATED]],
        )


def test_rows_that_are_not_local_do_not_count_whatever_the_first_one_is() -> None:
    table = _table().detach()
    table[0], table[6] = torch.inf, torch.nan  # the first row of each of two ranks
    inner = torch.tensor([1, 2, 7, 8])
    assert_agrees(
        lambda weight, indices: F.embedding_bag(indices, weight, torch.tensor([0, 2]), mode="sum"),
        [table, inner],
        [[ROWS], [REPLICATED]],
        mesh_shape=(2,),
    )


@pytest.mark.parametrize(
    ("table", "indices", "result", "gradient"),
    [
        # Columns are independent of each other.
        (COLUMNS, REPLICATED, COLUMNS, COLUMNS),
        # Every rank sums the rows, or the indices, that it holds.
        (ROWS, REPLICATED, PARTIAL, REPLICATED),
        (REPLICATED, ROWS, PARTIAL, PARTIAL),
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_looking_bags_up_sends_nothing(
    mode: str, table: Any, indices: Any, result: Any, gradient: Any
) -> None:
    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        weight = laid_out(_table(), mesh, [table])
        index = laid_out(torch.arange(11).repeat(4).reshape(4, 11), mesh, [indices])
        with Collectives() as issued:
            bags: Any = F.embedding_bag(index, weight, mode=mode)
        assert issued == {}
        assert bags.placements == (result,)
        grad = DTensor.from_local(
            torch.ones(4, bags.to_local().shape[1]).double(),
            mesh,
            [COLUMNS if result == COLUMNS else REPLICATED],
            shape=torch.Size((4, 6)),
            stride=(6, 1),
        )
        with Collectives() as issued:
            (found,) = torch.autograd.grad(bags, [weight], grad)
        assert issued == {}
        assert found.placements == (gradient,)

    body()


def test_a_maximum_gathers_rows_and_keeps_columns() -> None:
    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        index = laid_out(INDICES, mesh, [REPLICATED])
        for table, expected in ((COLUMNS, {}), (ROWS, {"all_to_all_single": 1})):
            weight = laid_out(_table().detach(), mesh, [table])
            with Collectives() as issued:
                F.embedding_bag(index, weight, OFFSETS, mode="max")
            assert issued == expected

    body()
