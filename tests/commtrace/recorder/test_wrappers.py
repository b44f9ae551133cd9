"""A module has a single path, whatever wraps it, and the user's own names stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

import commtrace
from commtrace.recorder.wrappers import plain_name, plain_path
from dtensor_core.testing import fake_world
from tests.commtrace.recorder.recorded import calls


class Leaf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x)
        dist.all_reduce(torch.ones(1))
        return x


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Leaf() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def compiled(model: Model) -> nn.Module:
    return torch.compile(model, backend="eager")  # type: ignore[return-value]


def compiled_inside(model: Model) -> nn.Module:
    for number, layer in enumerate(model.layers):
        model.layers[number] = torch.compile(layer, backend="eager")  # type: ignore[assignment]
    return model


def checkpointed(model: Model) -> nn.Module:
    for number, layer in enumerate(model.layers):
        model.layers[number] = checkpoint_wrapper(layer)
    return model


def all_at_once(model: Model) -> nn.Module:
    return DistributedDataParallel(compiled(checkpointed(model)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrap",
    [
        compiled,
        compiled_inside,
        checkpointed,
        DistributedDataParallel,
        AveragedModel,
        nn.DataParallel,
        all_at_once,
    ],
)
def test_wrappers_are_no_part_of_a_path(wrap: Callable[[Model], nn.Module]) -> None:
    with fake_world(2):
        model = wrap(Model())
        with commtrace.record(detail="collective") as recording:
            model(torch.ones(1, 2, requires_grad=True))
        made = [each for each in calls(recording) if each.kind == "all_reduce"]
    is_one_graph = wrap in (compiled, all_at_once)  # only the outermost module remains
    assert [each.module for each in made] == (
        ["", ""] if is_one_graph else ["layers.0", "layers.1"]
    )
    assert {each.module_call for each in made} == {0}


def test_a_module_of_one_s_own_that_is_named_so_keeps_its_name() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = Model()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.module(x)

    with fake_world(2):
        model = DistributedDataParallel(Own())
        with commtrace.record(detail="collective") as recording:
            model(torch.ones(1, 2))
        made = [each.module for each in calls(recording) if each.kind == "all_reduce"]
    assert made == ["module.layers.0", "module.layers.1"]


def test_names_alone_are_plain_too() -> None:
    name = "_fsdp_wrapped_module.layers.0._checkpoint_wrapped_module._orig_mod.wq.weight"
    assert plain_name(name) == "layers.0.wq.weight"
    assert plain_name("module.weight") == "module.weight"  # the owner cannot be determined
    assert plain_path(None, "") == ""
