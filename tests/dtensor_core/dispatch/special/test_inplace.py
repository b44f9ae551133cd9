"""In-place methods: the fast path equals the dispatcher, and defers to it where it must."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from dtensor_core import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
)
from dtensor_core.dispatch.special.contexts import rewriting
from dtensor_core.mesh import DeviceMesh
from dtensor_core.testing import fake_world
from dtensor_core.testing.threads import kept_mesh, on_threads

RANKS = 2
METHODS: dict[str, Callable[[Any, Any], Any]] = {
    **{
        name: lambda x, y, name=name: getattr(x, name)(y)
        for name in ("add_", "sub_", "mul_", "div_")
    },
    **{f.__name__: f for f in (operator.iadd, operator.isub, operator.imul, operator.itruediv)},
}


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with fake_world(RANKS):
        yield init_device_mesh("cpu", (RANKS,))


def tensor(mesh: DeviceMesh, value: float = 1.0) -> DTensor:
    return distribute_tensor(torch.full((4, 2), value), mesh, [Shard(0)])


def warm(mesh: DeviceMesh) -> tuple[DTensor, DTensor]:
    """Two tensors whose in-place sum is in the cache."""
    x, y = tensor(mesh), tensor(mesh, 2.0)
    tensor(mesh).add_(y)
    return x, y


def entered(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Operators that reach the dispatcher from now on."""
    seen: list[Any] = []
    usual = DTensor.__torch_dispatch__

    def watch(op: Any, *rest: Any) -> Any:
        seen.append(op)
        return usual(op, *rest)

    monkeypatch.setattr(DTensor, "__torch_dispatch__", staticmethod(watch))
    return seen


@pytest.mark.parametrize("other", ["tensor", 3, 2.5])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_computes_again_what_it_computed_first(
    mesh: DeviceMesh, name: str, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, plain = tensor(mesh, 6.0), torch.full((2, 2), 6.0)
    theirs = torch.full((2, 2), 2.0) if other == "tensor" else other
    mine = tensor(mesh, 2.0) if other == "tensor" else other
    METHODS[name](x, mine)
    METHODS[name](plain, theirs)
    ops = entered(monkeypatch)
    assert METHODS[name](x, mine) is x
    METHODS[name](plain, theirs)
    assert ops == []
    assert torch.equal(x.to_local(), plain)


def test_what_is_written_after_it_was_saved_is_refused_in_the_backward(mesh: DeviceMesh) -> None:
    x, y = warm(mesh)
    weight = tensor(mesh).requires_grad_()
    product = x * weight
    x.add_(y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_each_write_counts_once_as_a_version(mesh: DeviceMesh) -> None:
    x, y = warm(mesh)
    before, local = x._version, x._local_tensor._version
    view = x.view(8)
    x.add_(y)
    assert (x._version, view._version, x._local_tensor._version) == (before + 1, before + 1, local)


def test_a_write_of_what_needs_a_gradient_is_recorded(mesh: DeviceMesh) -> None:
    x, _ = warm(mesh)
    weight = tensor(mesh, 3.0).requires_grad_()
    x.add_(weight)
    assert x.grad_fn is not None
    x.add_(x)
    x.sum().backward()
    assert weight.grad is not None
    assert weight.grad.to_local().unique().tolist() == [2]  # pyright: ignore


def test_a_leaf_that_needs_a_gradient_is_written_without_autograd_only(mesh: DeviceMesh) -> None:
    x, y = warm(mesh)
    x.requires_grad_()
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        x.add_(y)
    with torch.no_grad():
        x.add_(y)
    assert x.is_leaf
    assert torch.equal(x.detach().to_local(), torch.full((2, 2), 3.0))


def test_a_dispatch_mode_sees_the_operator(mesh: DeviceMesh) -> None:
    class Seen(TorchDispatchMode):
        ops: list[Any]

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.ops.append(func)
            return func(*args, **(kwargs or {}))

    x, y = warm(mesh)
    with Seen() as seen:
        seen.ops = []
        x.add_(y)
    assert torch.ops.aten.add_.Tensor in seen.ops


def test_a_function_mode_sees_the_method(mesh: DeviceMesh) -> None:
    class Seen(TorchFunctionMode):
        functions: list[Any]

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.functions.append(func)
            return func(*args, **(kwargs or {}))

    x, y = warm(mesh)
    with Seen() as seen:
        seen.functions = []
        x.add_(y)
    assert torch.Tensor.add_ in seen.functions


def test_a_tangent_is_written_along(mesh: DeviceMesh) -> None:
    x, y = warm(mesh)

    def doubled_sum(x: Any, y: Any) -> Any:
        return (x + x).add_(y)

    given = (x, y), (tensor(mesh, 5.0), tensor(mesh, 7.0))
    for _ in range(2):
        _, tangent = torch.func.jvp(doubled_sum, *given)
        assert torch.equal(tangent.to_local(), torch.full((2, 2), 17.0))


def test_a_rewrite_applies(mesh: DeviceMesh) -> None:
    x, y = warm(mesh)
    seen: list[Any] = []

    def instead(*args: Any) -> Any:
        seen.append(args)
        return NotImplemented

    with rewriting({torch.ops.aten.add_.Tensor: instead}):
        x.add_(y)
    assert len(seen) == 1


def test_a_rewrite_ends_with_its_context(mesh: DeviceMesh) -> None:
    x, y = warm(mesh)
    seen: list[str] = []

    def named(name: str, op: Any) -> dict[Any, Any]:
        return {op: lambda *args: seen.append(name) or NotImplemented}

    add, mul = torch.ops.aten.add_.Tensor, torch.ops.aten.mul_.Tensor
    with rewriting(named("outer add", add)):
        with rewriting(named("inner add", add) | named("inner mul", mul)):
            x.add_(y).mul_(y)
        x.add_(y).mul_(y)
    x.add_(y).mul_(y)
    assert seen == ["inner add", "inner mul", "outer add"]


def test_a_tensor_of_inference_mode_is_written_there_only(mesh: DeviceMesh) -> None:
    _, y = warm(mesh)
    with torch.inference_mode():
        x = y + 1
        for _ in range(2):
            x.add_(y)
    assert torch.equal(x.to_local(), torch.full((2, 2), 7.0))
    with pytest.raises(RuntimeError, match="inference tensor"):
        x.add_(y)


def test_partial_sums_are_scaled_and_added_one_by_one(mesh: DeviceMesh) -> None:
    pending = DTensor.from_local(torch.ones(2), mesh, [Partial("avg")])
    for _ in range(2):
        pending.mul_(3)
        pending.add_(pending)
    assert torch.equal(pending.to_local(), torch.full((2,), 36.0))


def test_options_go_along(mesh: DeviceMesh) -> None:
    x, y = warm(mesh)
    x.add_(y, alpha=3)
    x.div_(y, rounding_mode="floor")
    assert torch.equal(x.to_local(), torch.full((2, 2), 3.0))


@pytest.mark.parametrize("value", [2, 2.5, True, float("inf")])
@pytest.mark.parametrize("placement", [Shard(0), Replicate(), Partial(), Partial("avg")], ids=str)
def test_a_number_is_copied_into_every_layout(placement, value: float) -> None:
    @on_threads(2)
    def body() -> None:
        mesh = kept_mesh((2,))
        x = DTensor.from_local(torch.ones(3, 4), mesh, [placement])
        found = x.clone().copy_(value)
        assert found.placements == (placement,)
        assert torch.equal(found.full_tensor(), torch.ones(x.shape).copy_(value))

    body()


@pytest.mark.parametrize("numbers", [(), (1.0,), (1.0, 2.0, 3.0)])
def test_nan_of_complex_numbers_is_replaced_in_place(numbers: tuple[float, ...]) -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.complex(torch.tensor([nan, 1.0, inf, -inf]), torch.tensor([0.0, nan, 1.0, nan]))
    wanted = x.clone().nan_to_num_(*numbers)

    @on_threads(2)
    def body() -> None:
        for placement in (Shard(0), Replicate()):
            mine = distribute_tensor(x, kept_mesh((2,)), [placement], src_data_rank=None)
            assert torch.equal(mine.nan_to_num_(*numbers).full_tensor(), wanted)

    body()
