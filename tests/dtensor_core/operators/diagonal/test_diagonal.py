"""Diagonals of matrices with sharded rows or columns: each rank reads and writes its part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dtensor_core import Partial, Replicate, Shard
from dtensor_core.placement import _StridedShard
from dtensor_core.testing.threads import kept_mesh, on_threads
from tests.dtensor_core.counting import Collectives
from tests.dtensor_core.operators.agreement import assert_agrees, laid_out


def _t(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


READS: dict[str, Callable[[Any], Any]] = {
    "trace": lambda x: x.trace(),
    "diagonal": lambda x: x.diagonal(),
    "above": lambda x: x.diagonal(2),
    "below": lambda x: x.diagonal(-3),
    "transposed": lambda x: x.diagonal(1, 1, 0),
    "diag": lambda x: x.diag(),
    "einsum": lambda x: torch.einsum("ii->i", x[:4, :4]),
}
LAYOUTS = {
    "rows": ((4,), [Shard(0)]),
    "columns": ((4,), [Shard(1)]),
    "both": ((2, 2), [Shard(1), Shard(0)]),
    "rows twice": ((2, 2), [Shard(0), Shard(0)]),
    "in blocks": ((2, 2), [_StridedShard(0, split_factor=2), Shard(0)]),
    "partial sums": ((4, 2), [Partial(), Shard(1)]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", READS)
def test_a_diagonal_and_its_gradient_are_those_of_one_device(name: str, layout: str) -> None:
    mesh_shape, placements = LAYOUTS[layout]
    x = _t(8, 5).requires_grad_()
    assert_agrees(READS[name], [x], [placements], mesh_shape=mesh_shape)


def test_reading_a_diagonal_sends_nothing() -> None:
    @on_threads(4)
    def body() -> None:
        x = laid_out(_t(8, 8), kept_mesh((4,)), [Shard(0)])
        with Collectives() as issued:
            found = x.diagonal(), x.trace(), x.diag()
        assert issued == {}
        assert [each.placements for each in found] == [(Partial(),)] * 3  # pyright: ignore

    body()


def test_what_is_written_to_a_diagonal_reaches_the_matrix() -> None:
    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        wanted = _t(8, 5)
        wanted.diagonal().fill_(3)
        for layout in (Shard(0), Shard(1), Replicate()):
            x = laid_out(_t(8, 5), mesh, [layout])
            with Collectives() as issued:
                x.diagonal().fill_(3)
            assert issued == {}
            assert x.placements == (layout,)
            assert x.full_tensor().tolist() == wanted.tolist()

    body()
