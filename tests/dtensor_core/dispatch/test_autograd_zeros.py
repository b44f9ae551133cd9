"""Gradients and results that torch creates from sizes alone are DTensors."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from dtensor_core import DTensor, Replicate, Shard, distribute_tensor
from dtensor_core.testing import kept_mesh, on_threads


def leaf(*shape: int) -> DTensor:
    torch.manual_seed(0)
    full = torch.rand(shape, dtype=torch.float64)
    return distribute_tensor(full, kept_mesh((2,)), [Replicate()]).requires_grad_()


@pytest.mark.parametrize(
    "function",
    [
        torch.copysign,
        torch.nextafter,
        torch.normal,
        lambda x, y: (x * 1).copysign_(y),
        lambda x, y: (x * 1).view(-1)[:3].copysign_(y[:1].reshape([])),
        *(
            lambda x, y, compare=compare: compare(x * 1, y) + compare(y * 1, 0.5)
            for compare in (
                *(torch.Tensor.eq_, torch.Tensor.ne_, torch.Tensor.lt_, torch.Tensor.le_),
                *(torch.Tensor.gt_, torch.Tensor.ge_),
            )
        ),
        lambda x, y: (x * 1).bernoulli_(y) + torch.poisson(x),
        lambda x, y: x.repeat(0) + y.repeat(0),
        lambda x, y: torch.sgn(x) + torch.sgn(y),
    ],
)
@on_threads(2)
def test_a_gradient_that_is_zeros_of_a_size_is_a_dtensor_of_the_values_of_one_device(function):
    x, y = leaf(3), leaf(3)
    function(x, y).sum().backward()
    plain = [each.full_tensor().detach().requires_grad_() for each in (x, y)]
    function(*plain).sum().backward()
    for each, expected in zip((x, y), plain, strict=True):
        assert isinstance(each.grad, DTensor)
        assert torch.equal(each.grad.full_tensor(), expected.grad)


@on_threads(2)
def test_such_a_gradient_meets_dtensors_in_the_next_formula():
    x, y = leaf(4), leaf(4)
    spread = distribute_tensor(torch.ones(4, dtype=torch.float64), kept_mesh((2,)), [Shard(0)])
    torch.normal(x * spread, y.abs() * spread).sum().backward()
    assert torch.equal(x.grad.full_tensor(), torch.zeros(4, dtype=torch.float64))


@pytest.mark.filterwarnings("ignore:torch.triangular_solve is deprecated")
@on_threads(2)
def test_the_gradient_of_one_result_of_several_is_a_dtensor():
    x, y = leaf(2, 3, 1), leaf(2, 3, 3)
    torch.triangular_solve(x, y)[1].sum().backward()
    assert isinstance(x.grad, DTensor)
    assert not x.grad.full_tensor().any()
    z, pivots = leaf(3, 3), leaf(3).to(torch.int32) + 1
    torch.lu_unpack(z, pivots)[1][:, [0, 1]].sum().backward()
    assert torch.equal(
        z.grad.full_tensor(), torch.tensor([[0.0, 0, 0], [1, 0, 0], [1, 1, 0]]).double()
    )


@pytest.mark.parametrize(
    "function",
    [
        torch.linalg.matrix_rank,
        lambda x: torch.linalg.matrix_rank(x, atol=1.0),
        lambda x: torch.linalg.norm(x, ord="nuc", dim=(-2, -1)),
        lambda x: torch.linalg.cond(x),
    ],
)
@on_threads(2)
def test_the_result_of_a_composite_for_an_empty_tensor_is_a_dtensor(function):
    x = leaf(3, 0, 0).detach()
    made = function(x)
    assert isinstance(made, DTensor)
    assert torch.equal(made.full_tensor(), function(x.full_tensor()))


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        *((getattr(F, f"{way}_pool2d"), (1, 1, 4, 4)) for way in ("max", "avg")),
        *((getattr(F, f"{way}_pool3d"), (1, 1, 4, 4, 4)) for way in ("max", "avg")),
        (F.adaptive_max_pool2d, (1, 1, 4, 4)),
        (F.adaptive_avg_pool2d, (1, 1, 4, 4)),
        (partial(F.pad, mode="reflect"), (1, 1, 4, 4)),
        (partial(F.pad, mode="replicate"), (1, 1, 4, 4)),
    ],
)
@on_threads(2)
def test_second_gradients_of_pools_and_pads_are_dtensors(function, shape):
    x = leaf(*shape)
    how = (1, 1, 1, 1) if isinstance(function, partial) else 2
    (grad,) = torch.autograd.grad(function(x, how).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), x)
    assert isinstance(second, DTensor)
