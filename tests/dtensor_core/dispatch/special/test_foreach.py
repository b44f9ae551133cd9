"""List operators, and the optimizers that use them, equal their run on plain tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from dtensor_core import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
    observe,
)
from dtensor_core.testing.fake import fake_world
from dtensor_core.testing.threads import kept_mesh, on_threads

Tensors = list[Any]


def _t(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _zeroed(x: Tensors, y: Tensors) -> Tensors:
    torch._foreach_zero_(x)
    torch._foreach_add_(x, y, alpha=2)
    return x


def _copied(x: Tensors, y: Tensors) -> Tensors:
    torch._foreach_copy_(x, y)
    return x


def _bounded(x: Tensors, y: Tensors) -> Tensors:
    torch._foreach_maximum_(x, 0.5)
    torch._foreach_minimum_(x, [1.5, 2.5, 3.5])
    return x


def _divided(x: Tensors, y: Tensors) -> Tensors:
    torch._foreach_addcdiv_(x, y, y, torch.tensor([0.5, 1.5, 2.5]))
    return x


CASES: dict[str, Callable[[Tensors, Tensors], Any]] = {
    "add lists": lambda x, y: torch._foreach_add(x, y, alpha=2),
    "multiply by a scalar": lambda x, y: torch._foreach_mul(x, 2.5),
    "multiply by scalars": lambda x, y: torch._foreach_mul(x, [2.5, 3.5, 4.5]),
    "multiply by a tensor": lambda x, y: torch._foreach_mul(x, torch.tensor(2.5)),
    "addcmul": lambda x, y: torch._foreach_addcmul(x, y, y, value=0.5),
    "lerp": lambda x, y: torch._foreach_lerp(x, y, 0.3),
    "norm": lambda x, y: torch._foreach_norm(x),
    "maximum": lambda x, y: torch._foreach_maximum(x, y),
    "maximum and a number": lambda x, y: torch._foreach_maximum(x, 0.5),
    "minimum and numbers": lambda x, y: torch._foreach_minimum(x, [0.5, -1.5, 2.5]),
    "maximum and minimum in place": _bounded,
    "sums of powers": lambda x, y: torch._foreach_powsum(x, 3),
    "addcmul by a tensor of numbers": lambda x, y: torch._foreach_addcmul(
        x, y, y, torch.tensor([0.5, 1.5, 2.5])
    ),
    "addcdiv in place by a tensor of numbers": _divided,
    "zero and add in place": _zeroed,
    "copy in place": _copied,
}
LAYOUTS: tuple[tuple[Placement, ...], ...] = (
    (Shard(0), Shard(1), Replicate()),
    (Partial(), Replicate(), Shard(0)),
)


@pytest.mark.parametrize("name", CASES)
def test_a_list_operator_equals_its_plain_run(name: str) -> None:
    fn = CASES[name]
    plain = [_t(5, 4), _t(3, 4), _t(7)], [_t(5, 4) * 2, _t(3, 4) * 2, _t(7) * 2]
    expected = fn([x.clone() for x in plain[0]], plain[1])

    @on_threads(2)
    def body() -> None:
        mesh = kept_mesh((2,))
        lists: list[Any] = [
            [
                distribute_tensor(t.clone(), mesh, [placement], src_data_rank=None)
                for t, placement in zip(tensors, layout, strict=True)
            ]
            for tensors, layout in zip(plain, LAYOUTS, strict=True)
        ]
        for got, want in zip(fn(lists[0], lists[1]), expected, strict=True):
            assert isinstance(got, DTensor)
            torch.testing.assert_close(got.full_tensor(), want)

    body()


@pytest.fixture
def mesh():
    with fake_world(4):
        yield init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))


def test_elements_may_be_on_different_meshes(mesh) -> None:
    other = init_device_mesh("cpu", (2, 2))
    x = distribute_tensor(torch.ones(4), mesh, [Shard(0)])
    y = distribute_tensor(torch.ones(4), other, [Replicate(), Shard(0)])
    doubled: Tensors = list(torch._foreach_mul([x, y], 2))
    assert [each.device_mesh for each in doubled] == [mesh, other]


def test_a_list_that_is_written_keeps_its_layouts() -> None:
    @on_threads(2)
    def body() -> None:
        mesh = kept_mesh((2,))
        x = distribute_tensor(torch.ones(4), mesh, [Shard(0)])
        y = distribute_tensor(torch.ones(4), mesh, [Partial()])
        view = y.view(2, 2)
        torch._foreach_exp_([x, y])
        assert (x.placements, y.placements) == ((Shard(0),), (Partial(),))
        for each in (x, y, view):
            assert isinstance(each, DTensor)
            full = each.full_tensor()
            torch.testing.assert_close(full, torch.ones(full.shape).exp())

    body()


@pytest.mark.parametrize("placement", [Replicate(), Shard(0), Shard(1)])
@pytest.mark.parametrize(
    "view", [lambda x: x, lambda x: x.t(), lambda x: x[:, 1:], lambda x: x.view(-1)]
)
def test_gradients_pass_through_views_whose_list_is_written(
    view: Callable[[Any], Any], placement: Placement
) -> None:
    def gradient(given: Any) -> Any:
        given = given.detach().requires_grad_()
        base = given.clone()
        torch._foreach_clamp_max_([view(base)], 0.25)
        (base * base).sum().backward()
        return given.grad

    @on_threads(2)
    def body() -> None:
        full = _t(4, 6)
        found = gradient(distribute_tensor(full, kept_mesh((2,)), [placement])).full_tensor()
        torch.testing.assert_close(found, gradient(full))

    body()


def test_what_was_saved_and_then_written_in_a_list_is_refused(mesh) -> None:
    x = distribute_tensor(_t(4, 6), mesh, [Shard(0)]).requires_grad_()
    y = x.exp()
    z = y * y
    torch._foreach_mul_([y], 2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_gradients_are_clipped_by_one_reduction_of_one_number(mesh) -> None:
    parameters = [
        nn.Parameter(distribute_tensor(torch.ones(8, size), mesh, [Shard(0)])) for size in (2, 3)
    ]
    for parameter in parameters:
        parameter.grad = distribute_tensor(torch.ones(parameter.shape), mesh, [Shard(0)])
    reasons: list[observe.Reason] = []
    with observe.listening(reasons.append):
        nn.utils.clip_grad_norm_(parameters, 1.0)
    assert [(reason.step, reason.payload_bytes) for reason in reasons] == [("all_reduce", 4)]


def test_clipped_gradients_are_those_of_one_device() -> None:
    gradients = [_t(5, 4) * 9, _t(4) * 9, _t(3, 2) * 9]
    plain = [nn.Parameter(torch.zeros(g.shape)) for g in gradients]
    for parameter, gradient in zip(plain, gradients, strict=True):
        parameter.grad = gradient.clone()
    norm = nn.utils.clip_grad_norm_(plain, 1.0)

    @on_threads(2)
    def body() -> None:
        mesh = kept_mesh((2,))
        mine = [nn.Parameter(distribute_tensor(torch.zeros(g.shape), mesh)) for g in gradients]
        layouts: tuple[Placement, ...] = (Shard(0), Partial(), Shard(1))
        for parameter, gradient, layout in zip(mine, gradients, layouts, strict=True):
            parameter.grad = distribute_tensor(gradient, mesh, [layout])
        found = nn.utils.clip_grad_norm_(mine, 1.0)
        assert isinstance(found, DTensor)
        torch.testing.assert_close(found.full_tensor(), norm)
        for got, want in zip(mine, plain, strict=True):
            assert isinstance(got.grad, DTensor)
            torch.testing.assert_close(got.grad.full_tensor(), want.grad)

    body()
