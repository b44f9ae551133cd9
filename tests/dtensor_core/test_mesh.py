"""Groups of axes, axes joined by `_flatten`, and ranks outside of a mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dtensor_core import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    empty,
    full,
    ones,
    rand,
    randn,
    zeros,
)
from dtensor_core.errors import MeshError
from dtensor_core.mesh import axes_name, axis_number, channel, flattened, num_flattened
from dtensor_core.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from dtensor_core.testing import fake_world, on_processes
from dtensor_core.testing.threads import on_threads


def test_axes_are_named_or_numbered() -> None:
    with fake_world(4):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        assert [axis_number(mesh, axis) for axis in ("dp", "tp", 0, -1)] == [0, 1, 0, 1]
        assert axes_name(mesh, (0, 1)) == "dp+tp"
        with pytest.raises(MeshError, match=r"axis 'pp'.*\n.*axes dp, tp"):
            axis_number(mesh, "pp")


def test_flattened_axes_are_found_on_every_mesh_sliced_from_one() -> None:
    with fake_world(16, rank=5):
        mesh = init_device_mesh("cpu", (2, 2, 2, 2), mesh_dim_names=("a", "b", "c", "d"))
        assert flattened(mesh) == {}
        mesh["a", "c"]._flatten()
        mesh["b", "c", "d"]._flatten("rest")
        assert set(flattened(mesh)) == {(0, 2), (1, 2, 3)}
        assert set(flattened(mesh["a", "c"])) == {(0, 1)}
        assert set(flattened(mesh["a", "b"])) == set()
        assert num_flattened(mesh["a", "b"]) == 2


def test_axes_of_one_rank_do_not_count_among_joined_ones() -> None:
    with fake_world(4):
        mesh = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("a", "b", "c"))
        mesh._flatten("all")
        assert set(flattened(mesh)) == {(0, 2)}


@on_threads(4)
def test_a_channel_has_the_coordinates_of_each_rank_of_its_group() -> None:
    ranks = torch.tensor([[3, 1], [0, 2]])
    mesh = DeviceMesh("cpu", ranks, mesh_dim_names=("a", "b"))
    mesh._flatten()
    row = channel(mesh, (1,))
    both = channel(mesh, (0, 1))
    assert both.coords == ((1, 0), (0, 1), (1, 1), (0, 0))
    assert row.coords == (((1,), (0,)) if dist.get_rank() in (1, 3) else ((0,), (1,)))
    with pytest.raises(MeshError, match="no process group joins"):
        channel(init_device_mesh("cpu", (2, 2)), (0, 1))


FULL = torch.arange(12.0).reshape(4, 3)
Make = Callable[[DeviceMesh], Any]


def sharded(mesh: DeviceMesh) -> DTensor:
    return distribute_tensor(FULL, mesh, [Shard(0)])


MAKERS: dict[str, Make] = {
    "distribute_tensor S": sharded,
    "distribute_tensor R": lambda mesh: distribute_tensor(FULL, mesh, [Replicate()]),
    "distribute_tensor P": lambda mesh: distribute_tensor(FULL, mesh, [Partial()]),
    "distribute_tensor alone": lambda mesh: distribute_tensor(
        FULL, mesh, [Shard(0)], src_data_rank=None
    ),
    "from_local": lambda mesh: DTensor.from_local(torch.ones(2, 3), mesh, [Shard(0)]),
    "from_local checked": lambda mesh: DTensor.from_local(
        torch.ones(4, 3), mesh, [Replicate()], run_check=True
    ),
    "from_local shaped": lambda mesh: DTensor.from_local(
        torch.ones(2, 3), mesh, [Shard(0)], shape=(4, 3), stride=(3, 1)
    ),
    "redistribute R": lambda mesh: sharded(mesh).redistribute(mesh, [Replicate()]),
    "redistribute S(1)": lambda mesh: sharded(mesh).redistribute(mesh, [Shard(1)]),
    "redistribute async": lambda mesh: sharded(mesh).redistribute(
        mesh, [Replicate()], async_op=True
    ),
    "zeros": lambda mesh: zeros(4, 3, device_mesh=mesh, placements=[Shard(0)]),
    "ones": lambda mesh: ones(4, 3, device_mesh=mesh, placements=[Shard(1)]),
    "empty": lambda mesh: empty(4, 3, device_mesh=mesh),
    "full": lambda mesh: full((4, 3), 2.0, device_mesh=mesh, placements=[Partial()]),
    "rand": lambda mesh: rand(4, 3, device_mesh=mesh, placements=[Shard(0)]),
    "randn": lambda mesh: randn(4, 3, device_mesh=mesh, placements=[Replicate()]),
    "add": lambda mesh: sharded(mesh) + 2,
    "in place": lambda mesh: sharded(mesh).add_(1),
    "gathering": lambda mesh: sharded(mesh) @ ones(3, 3, device_mesh=mesh, placements=[Shard(1)]),
    "dropout": lambda mesh: nn.functional.dropout(sharded(mesh)),
    "foreach": lambda mesh: torch._foreach_add([sharded(mesh)], 1.0)[0],
}


def check_makers(mesh: DeviceMesh, names: list[str]) -> None:
    """Global metadata is the same on every rank; ranks outside hold nothing, and none hangs."""
    outside = mesh.get_coordinate() is None
    for name in names:
        made = MAKERS[name](mesh)
        assert made.shape == (4, 3), name
        local = made.to_local()
        assert (tuple(local.shape) == (0,)) == outside, name
        gathered = made.full_tensor()
        assert tuple(gathered.shape) == ((0,) if outside else (4, 3)), name


@pytest.mark.parametrize("name", MAKERS)
def test_ranks_outside_of_a_mesh_hold_nothing(name: str) -> None:
    @on_threads(4)
    def body() -> None:
        check_makers(DeviceMesh("cpu", [0, 2]), [name])

    body()


def check_numbers(mesh: DeviceMesh) -> None:
    outside = mesh.get_coordinate() is None
    tensor = sharded(mesh)
    total: Any = tensor.sum()
    assert tuple(total.to_local().shape) == ()
    assert total.item() == (0 if outside else 66)
    assert float(tensor.mean()) == (0 if outside else 5.5)
    assert torch.equal(tensor, tensor)
    assert torch.equal(tensor, tensor + 1) is outside
    pieces: Any = tensor.split([2, 1], dim=1)
    assert [tuple(piece.shape) for piece in pieces] == [(4, 2), (4, 1)]
    found: Any = torch.nonzero(tensor.redistribute(mesh, [Replicate()]))
    assert found.to_local().shape == ((0,) if outside else (11, 2))


test_numbers_of_a_sub_mesh_need_its_ranks_only = on_threads(4)(
    lambda: check_numbers(DeviceMesh("cpu", [0, 2]))
)


@on_threads(3)
def test_ranks_of_a_sub_mesh_do_not_wait_for_the_others() -> None:
    mesh = DeviceMesh("cpu", [0, 2])
    if mesh.get_coordinate() is not None:
        check_makers(mesh, list(MAKERS))
        check_numbers(mesh)


@on_threads(4)
def test_training_on_a_sub_mesh_leaves_the_other_ranks_alone() -> None:
    mesh = DeviceMesh("cpu", [1, 3])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    styles = {"0": ColwiseParallel(use_local_output=False), "1": RowwiseParallel()}
    parallelize_module(model, mesh, styles)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        model(FULL).square().sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    local = torch.ones(2, 3, requires_grad=True)
    moved = DTensor.from_local(local, mesh, [Shard(0)]).redistribute(mesh, [Replicate()])
    moved.to_local().sum().backward()


@on_threads(8)
def test_a_sub_mesh_of_two_axes_may_be_flattened() -> None:
    mesh = DeviceMesh("cpu", [[0, 5], [2, 7]], mesh_dim_names=("a", "b"))
    mesh._flatten()
    tensor = distribute_tensor(FULL, mesh, [Shard(0), Shard(0)])
    gathered = tensor.full_tensor()
    inside = mesh.get_coordinate() is not None
    assert torch.equal(gathered, FULL) if inside else tuple(gathered.shape) == (0,)


def on_gloo() -> None:
    mesh = DeviceMesh("cpu", [0, 2])
    check_makers(mesh, list(MAKERS))
    check_numbers(mesh)


test_ranks_outside_of_a_mesh_hold_nothing_on_gloo = on_processes(3)(on_gloo)
