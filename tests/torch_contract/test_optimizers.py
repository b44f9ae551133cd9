"""torch's optimizers are what `torch_internals.optimizers` says."""

from __future__ import annotations

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from commtrace.torch_internals.optimizers import call_first
from dtensor_core.torch_internals import optimizers


def test_hooks_of_steps_are_called_in_an_order_that_can_be_changed() -> None:
    called: list[str] = []
    handles = [
        register_optimizer_step_pre_hook(lambda *_, name=name: called.append(name))
        for name in ("one", "other")
    ]
    try:
        call_first(handles[1])
        torch.optim.SGD([torch.ones(1)], lr=0.1).step()
    finally:
        for handle in handles:
            handle.remove()
    assert called == ["other", "one"]


def test_foreach_kernels_take_tensors() -> None:
    for types in optimizers.FOREACH_TYPES:
        assert torch.Tensor in types


def test_tensors_are_grouped_by_device_and_dtype() -> None:
    one, other = torch.ones(1), torch.ones(1, dtype=torch.float64)
    for module in optimizers.GROUPING:
        grouped = getattr(module, optimizers.GROUP_TENSORS)([[one, other, one]])
        sizes = {dtype: len(tensors[0]) for (_, dtype), (tensors, _) in grouped.items()}
        assert sizes == {torch.float32: 2, torch.float64: 1}


def test_clipping_takes_the_norm_of_all_gradients() -> None:
    norm = getattr(optimizers.CLIPPING, optimizers.TOTAL_NORM)
    assert norm([torch.tensor([3.0]), torch.tensor([4.0])]).item() == 5.0


def test_foreach_functions_take_lists() -> None:
    zero, unscale = (getattr(torch, name) for name in optimizers.FOREACH_FUNCTIONS)
    tensors = [torch.ones(2), torch.ones(3)]
    zero(tensors)
    assert all(not each.any() for each in tensors)
    found, scale = torch.zeros(1), torch.full((1,), 0.5)
    tensors = [torch.tensor([2.0, float("inf")])]
    unscale(tensors, found, scale)
    assert (tensors[0][0].item(), found.item()) == (1.0, 1.0)
