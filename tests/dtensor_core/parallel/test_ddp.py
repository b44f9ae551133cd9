"""DistributedDataParallel around a tensor-parallel module trains it like a single process."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from dtensor_core import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from dtensor_core.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from dtensor_core.parallel.ddp import _pre_dp_module_transform
from dtensor_core.testing.fake import fake_world
from dtensor_core.testing.pool import run_processes

PLAN = {"net.0": ColwiseParallel(), "net.2": RowwiseParallel()}
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"gradient_as_bucket_view": True},
    {"static_graph": True},
)


class Model(nn.Module):
    def __init__(self, recompute: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 5)).double()
        self.recompute = recompute

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.net, x, use_reentrant=False) if self.recompute else self.net(x)


def _train() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    batch = torch.randn(8, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mine = batch.chunk(2)[mesh.get_local_rank("dp")]
    full = Model()
    _steps(full, batch)
    for options in OPTIONS:
        for recompute in (False, True):
            model = Model(recompute)
            parallelize_module(model, mesh["tp"], PLAN)  # pyright: ignore[reportArgumentType]
            _steps(
                DistributedDataParallel(model, process_group=mesh.get_group("dp"), **options), mine
            )
            for name in ("0", "2"):
                for part in ("weight", "bias"):
                    got = getattr(model.net.get_submodule(name), part)
                    wanted = getattr(full.net.get_submodule(name), part)
                    assert isinstance(got, DTensor)
                    torch.testing.assert_close(got.full_tensor(), wanted)


def _steps(model: nn.Module, batch: torch.Tensor) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (model(batch) ** 2).mean().backward()
        optimizer.step()


def test_it_trains_like_one_process() -> None:
    run_processes(_train, 4)


@pytest.fixture
def mesh():
    with fake_world(4):
        yield init_device_mesh("cpu", (4,))


def test_what_is_held_is_local_and_what_is_shown_is_not(mesh) -> None:
    layer: Any = nn.Linear(4, 8, bias=False)
    layer.weight = nn.Parameter(distribute_tensor(torch.ones(8, 4), mesh, [Shard(0)]))
    layer.register_buffer("seen", distribute_tensor(torch.ones(4), mesh, [Replicate()]))
    layer.weight.grad = distribute_tensor(torch.ones(8, 4), mesh, [Replicate()])
    kind = type(layer)
    _pre_dp_module_transform(layer)
    assert isinstance(layer, kind)
    held = dict(layer.named_parameters())["weight"]
    assert type(held) is nn.Parameter
    assert held.shape == (2, 4)
    assert held.grad is not None
    assert held.grad.shape == (2, 4)
    assert type(layer.state_dict()["seen"]) is torch.Tensor
    assert (layer.weight.placements, layer.weight.shape) == ((Shard(0),), (8, 4))
    assert layer.seen.placements == (Replicate(),)
    copied: Any = copy.deepcopy(layer)
    assert copied.weight.placements == (Shard(0),)


def test_tied_parameters_stay_tied(mesh) -> None:
    first: Any = nn.Linear(4, 8, bias=False)
    second: Any = nn.Linear(4, 8, bias=False)
    first.weight = second.weight = nn.Parameter(
        distribute_tensor(torch.ones(8, 4), mesh, [Shard(0)])
    )
    _pre_dp_module_transform(nn.ModuleList([first, second]))
    assert first._parameters["weight"] is second._parameters["weight"]
