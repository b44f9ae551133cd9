"""Tensors and modules are distributed as programs written for torch's DTensor expect."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from dtensor_core import (
    DeviceMesh,
    DTensor,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from dtensor_core.testing.fake import fake_world
from dtensor_core.testing.threads import on_threads

RANKS = 4


class Stack(nn.Module):
    """Two linear layers."""

    def __init__(self, width: int, outputs: int, device: str = "cpu") -> None:
        super().__init__()
        self.seq = nn.Sequential(
            nn.Linear(width, outputs, device=device), nn.Linear(outputs, width, device=device)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.seq(x)


def line() -> DeviceMesh:
    return DeviceMesh("cpu", list(range(RANKS)))


@pytest.mark.parametrize("requires_grad", [True, False])
@on_threads(RANKS)
def test_a_distributed_tensor_is_a_leaf_of_global_shape(requires_grad: bool) -> None:
    full = torch.randn(3 * RANKS, 3, requires_grad=requires_grad)
    x = distribute_tensor(full, line(), [Shard(0)])
    assert x.size() == torch.Size([3 * RANKS, 3])
    assert x.to_local().size() == torch.Size([3, 3])
    assert x.requires_grad is requires_grad
    assert x.is_leaf


@on_threads(RANKS)
def test_negative_dims_count_from_the_last() -> None:
    x = distribute_tensor(torch.randn(3, 3 * RANKS), line(), [Shard(-1)])
    assert x.placements[0].dim == 1
    assert x.to_local().shape == (3, 3)


@on_threads(RANKS)
def test_what_cannot_be_distributed_is_refused() -> None:
    square = DeviceMesh("cpu", torch.arange(RANKS).reshape(2, 2))
    full = torch.randn(3 * RANKS, 3 * RANKS)
    with pytest.raises(ValueError, match="must have the same length"):
        distribute_tensor(full, square, [Shard(0)])
    with pytest.raises(RuntimeError, match="distribute leaf tensor"):
        distribute_tensor(full.clone().requires_grad_() + 2, square, [Shard(0)])
    x = distribute_tensor(full, square, [Shard(0), Shard(1)])
    with pytest.raises(ValueError, match="to a different device mesh"):
        distribute_tensor(x, line(), [Shard(0)])
    with pytest.raises(ValueError, match="to a different placements"):
        distribute_tensor(x, square, [Shard(0), Replicate()])


@pytest.mark.parametrize("extra", [1, 2])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_uneven_pieces_are_those_of_chunk(extra: int, dim: int) -> None:
    shape = [3, 3, 3]
    shape[dim] = RANKS * 3 + extra
    full = torch.randn(shape)

    @on_threads(RANKS)
    def body() -> None:
        mesh = line()
        x = distribute_tensor(full, mesh, [Shard(dim)])
        assert x.size() == torch.Size(shape)
        assert torch.equal(x.to_local(), full.chunk(RANKS, dim)[mesh.get_rank()])

    body()


@on_threads(RANKS)
def test_a_module_is_sharded_by_a_function_and_the_rest_replicated() -> None:
    mesh = line()
    shards = [Shard(0)]

    def partition(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        if isinstance(module, nn.Linear):
            for key, parameter in module.named_parameters():
                module.register_parameter(
                    key, nn.Parameter(distribute_tensor(parameter, mesh, shards))
                )

    sharded = distribute_module(Stack(20, 20), mesh, partition)
    assert all(parameter.placements == (Shard(0),) for parameter in sharded.parameters())
    full = distribute_module(Stack(20, 20), mesh)
    assert all(parameter.placements == (Replicate(),) for parameter in full.parameters())

    def only_first(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        if name == "seq.0":
            partition(name, module, mesh)

    mixed = distribute_module(Stack(20, 20), mesh, only_first)
    assert mixed.seq[0].weight.placements == (Shard(0),)
    assert mixed.seq[1].weight.placements == (Replicate(),)
    with pytest.raises(RuntimeError, match="should only be called once"):
        distribute_module(mixed, mesh)


@on_threads(RANKS)
def test_functions_around_the_forward_lay_out_inputs_and_outputs() -> None:
    mesh = line()

    def mark(module: nn.Module, inputs: Any, mesh: DeviceMesh) -> DTensor:
        return DTensor.from_local(inputs[0], mesh, [Shard(0)])

    def unwrap(module: nn.Module, outputs: Any, mesh: DeviceMesh) -> torch.Tensor:
        assert isinstance(outputs, DTensor)
        return outputs.to_local()

    both = distribute_module(Stack(20, 1), mesh, input_fn=mark, output_fn=unwrap)
    out = both(torch.randn(5, 20))
    assert isinstance(out, torch.Tensor)
    assert not isinstance(out, DTensor)

    def replicate(module: nn.Module, inputs: Any, mesh: DeviceMesh) -> DTensor:
        return DTensor.from_local(inputs[0], mesh, [Replicate()])

    model = distribute_module(Stack(10, 10), mesh, input_fn=replicate)
    model(torch.randn(10, 10, requires_grad=True)).sum().backward()
    grad = next(model.parameters()).grad
    assert isinstance(grad, DTensor)
    assert isinstance(grad.placements[0], Replicate)


def test_functions_of_two_arguments_warn_and_work() -> None:
    with fake_world(RANKS):
        warn_and_work(line())


def warn_and_work(mesh: DeviceMesh) -> None:
    with pytest.warns(FutureWarning, match="Deprecating"):
        module = distribute_module(
            Stack(20, 1),
            mesh,
            input_fn=lambda inputs, mesh: DTensor.from_local(inputs[0], mesh, [Shard(0)]),
            output_fn=lambda outputs, mesh: outputs.to_local(),
        )
    out = module(torch.randn(5, 20))
    assert isinstance(out, torch.Tensor)
    assert not isinstance(out, DTensor)


@on_threads(RANKS)
def test_casts_reach_the_local_tensors() -> None:
    mesh = line()
    for x in (
        DTensor.from_local(torch.rand(10), mesh, [Replicate()]),
        distribute_tensor(torch.rand(10), mesh, [Replicate()]),
    ):
        cast = x.to(torch.bfloat16)
        assert cast.dtype is cast._local_tensor.dtype is torch.bfloat16
    model = distribute_module(Stack(10, 10), mesh).to(torch.bfloat16)
    weight = model.seq[0].weight
    assert weight.dtype is weight._local_tensor.dtype is torch.bfloat16
    x = distribute_tensor(torch.rand(10), mesh, [Replicate()])
    with torch.autocast("cpu", torch.bfloat16):
        assert distribute_module(Stack(10, 10), mesh)(x).dtype is torch.bfloat16


@on_threads(RANKS)
def test_a_module_on_the_meta_device_is_made_real_shard_by_shard() -> None:
    def partition(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        for key, parameter in module._parameters.items():
            assert parameter is not None
            placed = distribute_tensor(parameter, mesh, [Shard(0)])
            real = torch.empty_like(placed, device=mesh.device_type)
            module.register_parameter(key, nn.Parameter(real))

    module = distribute_module(Stack(5 * RANKS, 20, device="meta"), line(), partition)
    for parameter in module.parameters():
        assert isinstance(parameter, DTensor)
        assert not parameter.is_meta
        assert parameter.device.type == "cpu"
