"""DTensors of fake and meta tensors, and `make_fx`: shapes and layouts without data.

A process plays a rank of a fake world. The types of the local tensors show that no real data
is sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import dtensor_core
from dtensor_core import (
    DeviceMesh,
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
)
from dtensor_core.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from dtensor_core.testing import fake_world, on_threads
from tests.dtensor_core.counting import Collectives
from tests.dtensor_core.models.small_models import MLPModule, ModelArgs, Transformer


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with fake_world(4):
        yield init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))


def is_fake(tensor: Any) -> bool:
    return isinstance(tensor, DTensor) and isinstance(tensor._local_tensor, FakeTensor)


def test_a_dtensor_becomes_fake_and_computes(mesh: DeviceMesh) -> None:
    x = distribute_tensor(torch.randn(8, 6), mesh, [Shard(0)])
    w = distribute_tensor(torch.randn(6, 12), mesh, [Shard(1)])
    with FakeTensorMode() as mode:
        y = torch.relu(mode.from_tensor(x) @ mode.from_tensor(w))
        moved = y.redistribute(placements=[Shard(1)])
        total = y.sum()
    assert is_fake(y)
    assert y._spec is (x @ w)._spec
    assert moved.to_local().shape == (8, 3)
    assert (total.placements, total.shape) == ((Partial(),), ())


def test_making_dtensors_under_the_mode(mesh: DeviceMesh) -> None:
    with FakeTensorMode():
        local = torch.randn(2, 6)
        made = [
            distribute_tensor(torch.randn(8, 6), mesh, [Shard(0)]),
            dtensor_core.zeros(8, 6, device_mesh=mesh, placements=[Shard(0)]),
            dtensor_core.randn(8, 6, device_mesh=mesh, placements=[Shard(0)]),
            DTensor.from_local(local, mesh, [Shard(0)]),
            DTensor.from_local(local, mesh, [Shard(0)], run_check=True),
        ]
        for each in made:
            assert is_fake(each)
            assert (each.shape, each._local_tensor.shape) == ((8, 6), (2, 6))
            assert isinstance(each.full_tensor(), FakeTensor)
            assert "FakeTensor" in repr(each)


@pytest.mark.parametrize("mode", ["real", "fake"])
def test_a_shard_whose_layout_forbids_a_view_is_copied(mesh: DeviceMesh, mode: str) -> None:
    """Kernels choose the strides of a shard, so the full tensor's strides may permit the view."""
    with FakeTensorMode() if mode == "fake" else nullcontext():
        shard = torch.randn(4, 2, 4).transpose(0, 1)
        x = DTensor.from_local(shard, mesh, [Shard(0)], shape=(8, 4, 4), stride=(16, 4, 1))
        y = x.view(8, 16)
    assert (y.shape, y._local_tensor.shape) == ((8, 16), (2, 16))


@on_threads(2)
def test_nothing_is_sent_under_the_mode() -> None:
    """A real collective would hang, because only a single rank calls it."""
    mesh = init_device_mesh("cpu", (2,))
    x = distribute_tensor(torch.randn(8, 6), mesh, [Shard(0)])
    if mesh.get_rank() == 0:
        with FakeTensorMode() as mode, Collectives() as planned:
            assert mode.from_tensor(x).full_tensor().shape == (8, 6)
        assert planned == {"all_gather_into_tensor": 1}


@pytest.mark.parametrize("mode", ["fake", "meta"])
def test_a_training_step_without_data(mesh: DeviceMesh, mode: str) -> None:
    device = "meta" if mode == "meta" else "cpu"
    with FakeTensorMode() if mode == "fake" else torch.device("meta"):
        model = parallelize_module(
            MLPModule(device), mesh, {"net1": ColwiseParallel(), "net2": RowwiseParallel()}
        )
        model(torch.randn(4, 10, device=device)).sum().backward()
        torch.optim.AdamW(model.parameters(), foreach=True).step()
    weight: Any = model.get_parameter("net1.weight")
    assert weight.grad.placements == weight.placements == (Shard(0),)
    assert weight.grad._local_tensor.shape == (4, 10)
    assert is_fake(weight.grad) or weight.grad._local_tensor.is_meta


def test_a_transformer_without_data(mesh: DeviceMesh) -> None:
    with FakeTensorMode():
        model = Transformer.parallelize(Transformer(ModelArgs()), mesh, use_seq_parallel=True)
        logits = model(torch.zeros(2, 8, dtype=torch.long))
        logits.sum().backward()
    assert logits.shape == (2, 8, 8)
    assert all(is_fake(parameter.grad) for parameter in model.parameters())


def test_from_meta_to_memory(mesh: DeviceMesh) -> None:
    plan = {"net1": ColwiseParallel(), "net2": RowwiseParallel()}
    model: nn.Module = parallelize_module(MLPModule("meta"), mesh, plan)
    model.to_empty(device="cpu")
    model.reset_parameters()  # pyright: ignore[reportCallIssue]
    assert model(torch.randn(4, 10)).shape == (4, 10)
    assert model.get_parameter("net1.weight").to_local().device.type == "cpu"  # pyright: ignore


@pytest.mark.parametrize("tracing", ["real", "fake"])
def test_make_fx_sees_local_operators_and_collectives(mesh: DeviceMesh, tracing: str) -> None:
    def function(x: DTensor, w: DTensor) -> torch.Tensor:
        return torch.relu(x @ w).redistribute(placements=[Replicate()]).to_local()

    x = distribute_tensor(torch.randn(8, 6), mesh, [Replicate()])
    w = distribute_tensor(torch.randn(6, 12), mesh, [Shard(1)])
    graph = make_fx(function, tracing_mode=tracing)(x, w)
    names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    assert names[:2] == ["aten.mm.default", "aten.relu.default"]
    assert [name for name in names if "c10d" in name and "wait" not in name] == [
        "_c10d_functional.all_gather_into_tensor.default"
    ]
