"""Gradients and results that torch creates from sizes alone are DTensors."""

from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from dtensor_core import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from dtensor_core.errors import MixedTensorError
from dtensor_core.testing import kept_mesh, on_threads, run_processes


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


def _hessian_product(function, how, x, y, t):
    def gradient(p):
        return torch.func.grad(lambda q: function(q, y))(p)

    if how == "forward over reverse":
        return torch.func.jvp(gradient, (x,), (t,))[1]
    return torch.func.vjp(gradient, x)[1](t)[0]


TWICE = {
    "silu": lambda x, y: (F.silu(x) * y).sum(),
    "mish": lambda x, y: (F.mish(x) * y).sum(),
    "binary_cross_entropy": lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
    "smooth_l1_loss": F.smooth_l1_loss,
    "l1_loss": F.l1_loss,
    "glu": lambda x, y: (F.glu(x, 1) ** 2).sum(),
    "copysign": lambda x, y: (x.copysign(y) * x).sum(),
    "written zeros": lambda x, y: (torch.zeros_like(x).add_(x) * x * y).sum(),
    "cumprod": lambda x, y: (x.cumprod(0) * y).sum(),
    "avg_pool2d": lambda x, y: F.avg_pool2d(x[None, None], 2).pow(3).sum() * y.sum(),
}


def _hessian_products() -> None:
    warnings.simplefilter("ignore")
    mesh = init_device_mesh("cpu", (2,))
    dice = torch.Generator().manual_seed(0)
    full = [torch.rand((6, 4), generator=dice, dtype=torch.float64) for _ in range(3)]
    for function in TWICE.values():
        for how in ("forward over reverse", "reverse over reverse"):
            expected = _hessian_product(function, how, *full)
            for placement in (Replicate(), Shard(0), Shard(1)):
                mine = [distribute_tensor(each, mesh, [placement]) for each in full]
                found = _hessian_product(function, how, *mine)
                assert isinstance(found, DTensor)
                torch.testing.assert_close(found.full_tensor(), expected)


def _plain_derivatives() -> None:
    warnings.simplefilter("ignore")
    plain = torch.arange(4.0)
    x = distribute_tensor(torch.ones(4), init_device_mesh("cpu", (2,)), [Shard(0)])
    for function in (lambda x: x * 2, torch.sin):
        with pytest.raises(MixedTensorError, match="got mixed"):
            function(x.detach().requires_grad_()).backward(plain)
        with pytest.raises(MixedTensorError, match="got mixed"):
            torch.func.jvp(function, (x,), (plain,))


def test_products_with_a_hessian_are_dtensors_of_the_values_of_one_device() -> None:
    run_processes(_hessian_products, 2)  # threads would share the levels of forward mode


def test_a_gradient_or_tangent_that_is_a_plain_tensor_is_refused() -> None:
    run_processes(_plain_derivatives, 2)
