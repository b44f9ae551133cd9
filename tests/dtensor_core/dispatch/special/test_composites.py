"""Composites with kernels that cannot take DTensors match a single device, including `out=`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dtensor_core import DTensor, Replicate, Shard, distribute_tensor
from dtensor_core.errors import RuleError
from dtensor_core.placement import Placement
from dtensor_core.testing import kept_mesh, on_threads

# The results matter here, not whether a fallback gathered arguments.
pytestmark = pytest.mark.filterwarnings("ignore::dtensor_core.MissingRuleWarning")

A = torch.arange(50.0).reshape(2, 5, 5).sin() + 3 * torch.eye(5)
B = torch.arange(25.0).reshape(1, 5, 5).cos()
NUMBERS = torch.tensor([0, 3, 0, 5, 7, 0])

WITH_OUT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "matmul of a batch and a matrix, which it folds": (torch.matmul, (A, B)),
    "matmul of a vector, for which it adds a dim": (torch.matmul, (A[0, 0], A[0])),
    "kron": (torch.kron, (A[0], B)),
    "solve": (torch.linalg.solve, (A, B)),
    "matrix_rank": (torch.linalg.matrix_rank, (A,)),
    "quantile": (torch.quantile, (A, 0.3)),
    "fftn": (torch.fft.fftn, (A,)),
    "a shape that the data decides": (torch.nonzero, (NUMBERS,)),
    "a mask": (torch.masked_select, (NUMBERS, NUMBERS > 0)),
    "what has no meta kernel": (torch.linalg.lstsq, (A, B.expand(2, 5, 5))),
    "a factory of tensors": (torch.linspace, (torch.tensor(1.0), torch.tensor(3.0), 9)),
}


def _sharded(value: Any, placement: Placement) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    replicated = isinstance(placement, Shard) and placement.dim >= value.ndim
    placements = [Replicate() if replicated else placement]
    return distribute_tensor(value.clone(), kept_mesh((4,)), placements, src_data_rank=None)


def _tensors(result: Any) -> tuple[torch.Tensor, ...]:
    return (result,) if isinstance(result, torch.Tensor) else tuple(result)


@pytest.mark.parametrize("to", [Replicate(), Shard(0)], ids=str)
@pytest.mark.parametrize("placement", [Replicate(), Shard(0), Shard(1)], ids=str)
@pytest.mark.parametrize("name", WITH_OUT)
@on_threads(4)
def test_out_gets_the_result_and_keeps_its_layout(
    name: str, placement: Placement, to: Placement
) -> None:
    function, args = WITH_OUT[name]
    expected = _tensors(function(*args))
    outs = tuple(_sharded(torch.full_like(each, 9), to) for each in expected)
    layouts = [out.placements for out in outs]
    function(*(_sharded(arg, placement) for arg in args), out=outs if len(outs) > 1 else outs[0])
    assert [out.placements for out in outs] == layouts
    for out, each in zip(outs, expected, strict=True):
        torch.testing.assert_close(out.full_tensor(), each, equal_nan=True)


@on_threads(4)
def test_an_out_of_another_shape_is_refused_and_not_written() -> None:
    out = _sharded(torch.full((3, 5, 5), 9.0), Shard(0))
    with pytest.raises(RuleError, match=r"a result of shape \(2, 5, 5\)"):
        torch.matmul(_sharded(A, Shard(0)), _sharded(B, Shard(1)), out=out)
    assert bool((out._local_tensor == 9).all())


@on_threads(4)
def test_an_out_that_autograd_would_have_to_follow_is_refused_as_torch_does() -> None:
    a, out = _sharded(A, Shard(0)).requires_grad_(), _sharded(torch.empty_like(A), Shard(0))
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        torch.matmul(a, _sharded(B, Shard(1)), out=out)


@pytest.mark.parametrize("with_replacement", [False, True])
@pytest.mark.parametrize("r", [0, 1, 2, 3])
@on_threads(4)
def test_combinations_are_those_of_the_full_tensor_and_have_a_gradient(
    r: int, with_replacement: bool
) -> None:
    full = torch.arange(5.0).requires_grad_()
    sharded = _sharded(full.detach(), Shard(0)).requires_grad_()
    expected = torch.combinations(full, r, with_replacement)
    result = torch.combinations(sharded, r, with_replacement)
    assert isinstance(result, DTensor)
    torch.testing.assert_close(result.full_tensor(), expected)
    if r:
        torch.autograd.backward(
            [expected, result], [expected.detach().cos(), result.detach().cos()]
        )
        torch.testing.assert_close(sharded.grad.full_tensor(), full.grad)


@pytest.mark.parametrize("where", [torch.tensor(3), torch.tensor([1, 4, 4])], ids=["one", "many"])
@on_threads(4)
def test_a_tensor_of_indices_gives_the_split_positions(where: torch.Tensor) -> None:
    for given in (where, _sharded(where, Replicate())):
        parts = torch.tensor_split(_sharded(A, Shard(1)), given, dim=1)
        for part, expected in zip(parts, torch.tensor_split(A, where, dim=1), strict=True):
            torch.testing.assert_close(part.full_tensor(), expected)  # pyright: ignore


@on_threads(4)
def test_a_batch_without_a_meta_kernel_is_not_taken_apart() -> None:
    result = torch.geqrf(_sharded(A, Shard(0)))
    for part, expected in zip(result, torch.geqrf(A), strict=True):
        torch.testing.assert_close(part.full_tensor(), expected)  # pyright: ignore
