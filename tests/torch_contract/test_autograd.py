"""torch's autograd is what `torch_internals.autograd` says of both packages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._functorch import eager_transforms, predispatch
from torch.autograd import forward_ad

from commtrace.torch_internals import autograd as recorders
from dtensor_core.torch_internals import autograd


def test_a_backward_pass_has_a_number_and_a_current_node() -> None:
    seen: list[tuple[int, str]] = []

    class Looking(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            seen.append((autograd.current_graph_task_id(), autograd.current_node().name()))
            return grad

    assert autograd.current_graph_task_id() == -1
    assert autograd.current_node() is None
    x = torch.ones(2, requires_grad=True)
    for _ in range(2):
        Looking.apply(x).sum().backward()
    (first, name), (second, _) = seen
    assert 0 <= first < second
    assert name == "LookingBackward"


def test_callbacks_run_at_the_end_of_a_backward_pass_in_order() -> None:
    done: list[str] = []

    def hook(grad: torch.Tensor) -> None:
        recorders.queue_callback(lambda: done.append("first"))
        recorders.queue_callback(lambda: done.append("second"))
        done.append("hook")

    x = torch.ones(2, requires_grad=True)
    x.register_hook(hook)
    (x * 2).sum().backward()
    assert done == ["hook", "first", "second"]


def test_leaves_have_a_node_that_accumulates_into_them() -> None:
    x = torch.ones(2, requires_grad=True)
    ((node, _),) = (x * 2).grad_fn.next_functions[:1]
    assert type(node) is recorders.AccumulateGrad
    assert node.variable is x


def test_nodes_are_numbered_in_order() -> None:
    x = torch.ones(2, requires_grad=True)
    before = recorders.next_sequence_number()
    node = (x * 2).grad_fn
    assert node._sequence_nr() == before
    assert recorders.next_sequence_number() == before + 1


def test_a_version_counts_writes() -> None:
    x = torch.ones(2)
    autograd.increment_version((x,))
    assert x._version == 1


def test_dual_levels_are_entered_and_left() -> None:
    assert not autograd.has_dual_level()
    with forward_ad.dual_level():
        assert autograd.has_dual_level()
    assert not autograd.has_dual_level()


def test_nodes_of_python_functions_have_a_class_of_their_own() -> None:
    class Copying(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad

    x = torch.ones(2, requires_grad=True)
    assert isinstance(Copying.apply(x).grad_fn, autograd.python_node)
    assert not isinstance(x.sin().grad_fn, autograd.python_node)


def test_wrappers_of_torch_func_contain_the_tensor_and_batches_are_told_apart() -> None:
    x = torch.ones(2)
    seen: list[bool] = []

    def function(y: torch.Tensor) -> torch.Tensor:
        seen.append(autograd.innermost(y) is x)
        return y.sum()

    torch.func.grad(function)(x)
    torch.func.vmap(lambda y: seen.append(autograd.is_batched(y)) or y)(x)
    assert seen == [True, True]


def test_gradients_are_checked_and_derivatives_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    for module, name in (
        (torch.autograd, "_make_grads"),
        (eager_transforms, "_autograd_grad"),
        (eager_transforms, "safe_unpack_dual"),
        (predispatch, "_make_dual"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))
    autograd.check_tangents(lambda tensor, tangent: seen.append("tangent"))
    autograd.check_gradients(lambda output, gradient: seen.append("checked"))
    autograd.convert_derivatives(lambda derivative, tensor: derivative * 0)
    x = torch.ones(2, requires_grad=True)
    (x * 2).backward(torch.ones(2))
    assert seen == ["checked"]
    assert not torch.func.grad(torch.sum)(x.detach()).any()
    seen.clear()
    assert not torch.func.jvp(torch.sin, (x.detach(),), (x.detach(),))[1].any()
    with forward_ad.dual_level():
        forward_ad.make_dual(x, torch.ones(2))
    assert seen == ["tangent", "tangent"]
