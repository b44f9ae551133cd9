"""Grouped and scaled products: experts and 8-bit weights, sharded by columns and by rows."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from dtensor_core import Partial, Replicate, Shard, distribute_tensor
from dtensor_core.testing.threads import kept_mesh, on_threads
from tests.dtensor_core.counting import Collectives

REPLICATED = Replicate()
# Layouts of x, y and the product.
SHARDED: dict[str, tuple[Any, Any, Any]] = {
    "columns": (REPLICATED, Shard(-1), Shard(1)),
    "what is summed over": (Shard(1), Shard(-2), Partial()),
}


def _small(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-2, 3, shape, generator=generator).to(torch.bfloat16)


@pytest.mark.parametrize("name", SHARDED)
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
            for each, at in zip((x, y), SHARDED[name], strict=False)
        ]
        groups = distribute_tensor(ends, mesh, src_data_rank=None)
        weights = distribute_tensor(_small(6, 64), mesh, src_data_rank=None)
        with Collectives() as issued:
            made: Any = torch._grouped_mm(*mine, groups)
            (made * weights).sum().backward()
        assert issued == {}
        assert made.placements == (SHARDED[name][2],)
        assert torch.equal(made.full_tensor(), wanted)
        for found, each in zip(mine, (x, y), strict=True):
            assert torch.equal(found.grad.full_tensor(), each.grad)

    body()


# Shapes of two grouped matrices, ends of the groups, and which of the two are transposed.
FORMS: dict[str, Any] = {
    "rows by experts": ((6, 16), (3, 16, 24), [1, 4, 6], (False, False)),
    "rows by transposed experts, one of them empty": (
        (6, 16),
        (3, 16, 24),
        [0, 4, 6],
        (False, True),
    ),
    "no rows": ((0, 16), (3, 16, 24), [0, 0, 0], (False, False)),
    "batches": ((4, 8, 16), (4, 16, 24), None, (True, False)),
    "columns by experts": ((3, 8, 16), (16, 24), [8, 8, 24], (False, True)),
    "sums by experts": ((8, 16), (16, 24), [8, 16], (True, True)),
}


def _grouped(x: Any, y: Any, ends: Any, turned: Any, weights: Any) -> list[torch.Tensor]:
    """Compute the product and the gradients of its leaves, stored transposed where `turned`."""
    x, y = x.requires_grad_(), y.requires_grad_()
    a, b = (each.mT if turn else each for each, turn in zip((x, y), turned, strict=True))
    made = torch.nn.functional.grouped_mm(a, b, offs=ends)
    (made * weights).sum().backward()
    return [made, x.grad, y.grad]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_grouped_products_of_every_layout_equal_those_of_one_device(
    form: str, dtype: torch.dtype
) -> None:
    shapes, ends, turned = FORMS[form][:2], FORMS[form][2], FORMS[form][3]
    x, y = (_small(*shape).to(dtype) for shape in shapes)
    x, y = (e.mT.contiguous() if t else e for e, t in zip((x, y), turned, strict=True))
    ends = None if ends is None else torch.tensor(ends, dtype=torch.int32)
    a, b = (each.mT if turn else each for each, turn in zip((x, y), turned, strict=True))
    weights = _small(*torch._grouped_mm(a, b, ends).shape).to(dtype)
    wanted = _grouped(x.clone(), y.clone(), ends, turned, weights)

    @on_threads(3)
    def body() -> None:
        mesh = kept_mesh((3,))
        groups, factors = (
            None if each is None else distribute_tensor(each, mesh, src_data_rank=None)
            for each in (ends, weights)
        )
        layouts = ([REPLICATED, *map(Shard, range(each.ndim))] for each in (x, y))
        for placements in itertools.product(*layouts):
            mine = [
                distribute_tensor(each, mesh, [at], src_data_rank=None)
                for each, at in zip((x, y), placements, strict=True)
            ]
            for found, each in zip(_grouped(*mine, groups, turned, factors), wanted, strict=True):
                assert torch.equal(found.full_tensor(), each), placements
                assert found.stride() == each.stride(), placements

    body()


@pytest.mark.parametrize("name", SHARDED)
@pytest.mark.parametrize("by_rows", [False, True], ids=["one scale", "a scale a row and column"])
def test_scaled_products_need_no_communication(name: str, by_rows: bool) -> None:
    x, y = (_small(*shape).to(torch.float8_e4m3fn) for shape in ((6, 64), (64, 64)))
    scales = [torch.full((6, 1), 0.5), 2.0 ** (torch.arange(64) % 3).reshape(1, 64)]
    scales = scales if by_rows else [torch.tensor(0.5), torch.tensor(2.0)]
    wanted = torch._scaled_mm(x, y.t(), *scales, out_dtype=torch.bfloat16)

    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        a = distribute_tensor(x, mesh, [SHARDED[name][0]], src_data_rank=None)
        b: Any = distribute_tensor(y, mesh, [Shard(-1 - SHARDED[name][1].dim)], src_data_rank=None)
        given = [distribute_tensor(each, mesh, src_data_rank=None) for each in scales]
        with Collectives() as issued:
            made: Any = torch._scaled_mm(a, b.t(), *given, out_dtype=torch.bfloat16)
        assert issued == {}
        assert made.placements == (SHARDED[name][2],)
        assert torch.equal(made.full_tensor(), wanted)

    body()
