"""Grouped and scaled products: experts and 8-bit weights, cut by columns and by rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dtensor_core import Partial, Replicate, Shard, distribute_tensor
from dtensor_core.testing.threads import kept_mesh, on_threads
from tests.dtensor_core.counting import Collectives

WHOLE = Replicate()
# Layouts of x, y and the product.
CUT: dict[str, tuple[Any, Any, Any]] = {
    "columns": (WHOLE, Shard(-1), Shard(1)),
    "what is summed over": (Shard(1), Shard(-2), Partial()),
}


def _small(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-2, 3, shape, generator=generator).to(torch.bfloat16)


@pytest.mark.parametrize("name", CUT)
def test_experts_and_their_gradients_need_no_communication(name: str) -> None:
    x, y = _small(6, 32).requires_grad_(), _small(3, 32, 64).requires_grad_()
    ends = torch.tensor([1, 4, 6], dtype=torch.int32)
    wanted = torch._grouped_mm(x, y, ends)
    (wanted * _small(6, 64)).sum().backward()

    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        mine: list[Any] = [
            distribute_tensor(each.detach(), mesh, [at], src_data_rank=None).requires_grad_()
            for each, at in zip((x, y), CUT[name], strict=False)
        ]
        groups = distribute_tensor(ends, mesh, src_data_rank=None)
        weights = distribute_tensor(_small(6, 64), mesh, src_data_rank=None)
        with Collectives() as issued:
            made: Any = torch._grouped_mm(*mine, groups)
            (made * weights).sum().backward()
        assert issued == {}
        assert made.placements == (CUT[name][2],)
        assert torch.equal(made.full_tensor(), wanted)
        for found, each in zip(mine, (x, y), strict=True):
            assert torch.equal(found.grad.full_tensor(), each.grad)

    body()


@pytest.mark.parametrize("name", CUT)
@pytest.mark.parametrize("by_rows", [False, True], ids=["one scale", "a scale a row and column"])
def test_scaled_products_need_no_communication(name: str, by_rows: bool) -> None:
    x, y = (_small(*shape).to(torch.float8_e4m3fn) for shape in ((6, 64), (64, 64)))
    scales = [torch.full((6, 1), 0.5), 2.0 ** (torch.arange(64) % 3).reshape(1, 64)]
    scales = scales if by_rows else [torch.tensor(0.5), torch.tensor(2.0)]
    wanted = torch._scaled_mm(x, y.t(), *scales, out_dtype=torch.bfloat16)

    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        a = distribute_tensor(x, mesh, [CUT[name][0]], src_data_rank=None)
        b: Any = distribute_tensor(y, mesh, [Shard(-1 - CUT[name][1].dim)], src_data_rank=None)
        given = [distribute_tensor(each, mesh, src_data_rank=None) for each in scales]
        with Collectives() as issued:
            made: Any = torch._scaled_mm(a, b.t(), *given, out_dtype=torch.bfloat16)
        assert issued == {}
        assert made.placements == (CUT[name][2],)
        assert torch.equal(made.full_tensor(), wanted)

    body()
