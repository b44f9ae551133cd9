"""Models of `transformers` whose parameters and inputs are DTensors train as on a single device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from dtensor_core import Placement, Replicate, Shard, distribute_tensor
from dtensor_core.experimental import implicit_replication
from dtensor_core.testing import kept_mesh, run_threads
from tests.dtensor_core.models.pretrained import MODELS, Step, expect_same, train

pytestmark = pytest.mark.filterwarnings("ignore")


@dataclass(frozen=True, slots=True)
class Layout:
    """A mesh shape, and the placements of parameters and inputs."""

    shape: tuple[int, ...]
    parameters: Callable[[torch.Tensor], list[Placement]]
    inputs: list[Placement]


LAYOUTS = {
    "batch": Layout((2,), lambda p: [Replicate()], [Shard(0)]),
    "first dim": Layout((2,), lambda p: [Shard(0)], [Replicate()]),
    "last dim, uneven": Layout((3,), lambda p: [Shard(p.ndim - 1)], [Replicate()]),
    "batch and first dim": Layout(
        (2, 2), lambda p: [Replicate(), Shard(0)], [Shard(0), Replicate()]
    ),
}


@cache
def on_one_device(name: str) -> list[Step]:
    return train(MODELS[name].make(), MODELS[name].batch())


def place(model: nn.Module, mesh: Any, layout: Layout) -> None:
    """Convert all parameters to DTensors; shared parameters stay shared."""
    placed: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter not in placed:
                data = distribute_tensor(parameter.data, mesh, layout.parameters(parameter))
                placed[parameter] = nn.Parameter(data, parameter.requires_grad)
            if parameter is not None:
                module._parameters[name] = placed[parameter]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_made_of_dtensors_trains_as_on_one_device(name: str, layout: str) -> None:
    case_layout, expected = LAYOUTS[layout], on_one_device(name)

    def body() -> list[Step]:
        mesh = kept_mesh(case_layout.shape)
        model = MODELS[name].make()
        place(model, mesh, case_layout)
        batch = {
            n: distribute_tensor(v, mesh, case_layout.inputs)
            for n, v in MODELS[name].batch().items()
        }
        with implicit_replication():
            return train(model, batch)

    for taken in run_threads(body, torch.Size(case_layout.shape).numel(), timeout_s=120):
        expect_same(taken, expected)
