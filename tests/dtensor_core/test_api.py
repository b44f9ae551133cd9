"""Creation of DTensors from tensors and modules."""

from __future__ import annotations

import copy
import io
import itertools
import math
import pickle

import pytest
import torch
from torch import nn

from dtensor_core import (
    DeviceMesh,
    DTensor,
    Partial,
    Replicate,
    Shard,
    _StridedShard,
    distribute_module,
    distribute_tensor,
    init_device_mesh,
    observe,
)
from dtensor_core.api import LeafError
from dtensor_core.errors import MeshError, PlacementError
from dtensor_core.layout import held_extents, shardings_of
from dtensor_core.testing.fake import fake_world
from dtensor_core.testing.threads import kept_mesh, on_threads, run_threads


class Stack(nn.Module):
    """Two linear layers."""

    def __init__(self, width: int, device: str = "cpu") -> None:
        super().__init__()
        self.seq = nn.Sequential(
            nn.Linear(width, width, device=device), nn.Linear(width, 2, device=device)
        )
        self.register_buffer("scale", torch.ones(1, device=device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.seq(x) * self.scale


@pytest.fixture
def mesh():
    with fake_world(4):
        yield init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))


@pytest.mark.parametrize("size", [8, 7, 5, 2, 0])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_shards_are_those_of_torch_chunk(size: int, dim: int) -> None:
    shape = [3, 3]
    shape[dim] = size
    full = torch.randn(shape)

    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((4,))
        x = distribute_tensor(full, mesh, [Shard(dim)])
        pieces = [*full.chunk(4, dim), *[full.narrow(dim, 0, 0)] * 4]
        expected = pieces[mesh.get_local_rank()] if size else pieces[0]
        assert torch.equal(x.to_local(), expected)
        assert x.shape == full.shape
        assert torch.equal(x.full_tensor(), full)

    body()


def test_data_come_from_the_source_rank() -> None:
    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh((2, 2))
        mine = torch.arange(8.0) + 100 * mesh.get_rank()
        for placements in (
            [Shard(0), Shard(0)],
            [Shard(0), Replicate()],
            [Partial(), _StridedShard(0, split_factor=2)],
        ):
            first = distribute_tensor(mine, mesh, placements)
            assert torch.equal(first.full_tensor(), torch.arange(8.0))
            last = distribute_tensor(mine, mesh, placements, src_data_rank=1)
            assert torch.equal(last.full_tensor(), torch.arange(8.0) + 300)

    body()


def test_without_source_rank_nothing_is_sent(mesh) -> None:
    def refuse(reason: observe.Reason) -> None:
        raise AssertionError(reason)

    with observe.listening(refuse):
        x = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)], src_data_rank=None)
    assert x.to_local().tolist() == [0.0, 1.0]


def test_a_leaf_stays_a_leaf_that_wants_its_gradient(mesh) -> None:
    x = distribute_tensor(torch.ones(4, requires_grad=True), mesh, [Shard(0)])
    assert x.is_leaf
    assert x.requires_grad


def test_a_result_is_not_distributed(mesh) -> None:
    with pytest.raises(LeafError, match="distribute leaf tensor"):
        distribute_tensor(torch.ones(4, requires_grad=True) + 2, mesh, [Shard(0)])


def test_a_dtensor_is_distributed_only_as_it_is(mesh) -> None:
    x = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
    assert distribute_tensor(x, mesh, [Shard(0)]) is x
    with pytest.raises(PlacementError, match="to a different placements"):
        distribute_tensor(x, mesh, [Shard(1)])
    with pytest.raises(MeshError, match="to a different device mesh"):
        distribute_tensor(x, DeviceMesh("cpu", [[0, 1], [2, 3]]), [Shard(0), Shard(0)])


def test_placements_are_one_per_axis(mesh) -> None:
    with pytest.raises(ValueError, match="must have the same length"):
        distribute_tensor(torch.ones(4), mesh, [Shard(0), Shard(0)])


def test_without_a_mesh_the_one_in_force_is_meant(mesh) -> None:
    with mesh:
        assert distribute_tensor(torch.ones(4), placements=[Shard(0)]).device_mesh == mesh
    with pytest.raises(MeshError, match="no `with mesh:` is active"):
        distribute_tensor(torch.ones(4))


def test_a_meta_tensor_is_laid_out_without_data(mesh) -> None:
    x = distribute_tensor(torch.ones(8, 2, device="meta"), mesh, [Shard(0)])
    assert x.is_meta
    assert x._local_tensor.shape == (2, 2)
    real = torch.empty_like(x, device="cpu")
    assert isinstance(real, DTensor)
    assert not real.is_meta
    assert real._local_tensor.shape == (2, 2)


def test_a_module_is_replicated_where_the_partition_leaves_it(mesh) -> None:
    def partition(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        if name == "seq.0":
            for key, parameter in module.named_parameters():
                module.register_parameter(
                    key, nn.Parameter(distribute_tensor(parameter, mesh, [Shard(0)]))
                )

    module = distribute_module(Stack(8), mesh, partition)
    placements = {name: p.placements for name, p in module.named_parameters()}
    assert placements == {
        "seq.0.weight": (Shard(0),),
        "seq.0.bias": (Shard(0),),
        "seq.1.weight": (Replicate(),),
        "seq.1.bias": (Replicate(),),
    }
    assert isinstance(module.scale, DTensor)


def test_input_and_output_functions_run_around_the_forward(mesh) -> None:
    def prepare(module: nn.Module, inputs: tuple[torch.Tensor, ...], mesh: DeviceMesh):
        return DTensor.from_local(inputs[0], mesh, [Shard(0)])

    def localise(module: nn.Module, output: DTensor, mesh: DeviceMesh) -> torch.Tensor:
        return output.to_local()

    module = distribute_module(Stack(8), mesh, input_fn=prepare, output_fn=localise)
    out = module(torch.ones(5, 8))
    assert type(out) is torch.Tensor
    assert out.shape == (5, 2)


def test_functions_of_two_arguments_still_run_and_warn(mesh) -> None:
    with pytest.warns(FutureWarning, match="Deprecating input_fn"):
        module = distribute_module(
            Stack(8),
            mesh,
            input_fn=lambda inputs, mesh: DTensor.from_local(inputs[0], mesh, [Replicate()]),
        )
    assert module(torch.ones(5, 8)).shape == (5, 2)


def test_a_module_is_distributed_once(mesh) -> None:
    module = distribute_module(Stack(8), mesh)
    with pytest.raises(LeafError, match="should only be called once"):
        distribute_module(module, mesh)


def test_a_module_is_cast_with_its_shards(mesh) -> None:
    module = distribute_module(Stack(8), mesh).to(torch.bfloat16)
    weight = module.seq[0].weight
    assert weight.dtype is torch.bfloat16
    assert weight._local_tensor.dtype is torch.bfloat16


def test_autocast_reaches_into_a_distributed_module(mesh) -> None:
    module = distribute_module(nn.Linear(8, 8), mesh)
    with torch.autocast("cpu", torch.bfloat16):
        out = module(distribute_tensor(torch.ones(4, 8), mesh, [Replicate()]))
    assert out.dtype is torch.bfloat16


def test_a_dtensor_survives_copying_and_storing(mesh) -> None:
    x = nn.Parameter(distribute_tensor(torch.arange(8.0), mesh, [_StridedShard(0, split_factor=2)]))
    stored = io.BytesIO()
    torch.save({"weight": x}, stored)
    stored.seek(0)
    loaded = torch.load(stored, weights_only=True)["weight"]
    for again in (copy.deepcopy(x), pickle.loads(pickle.dumps(x)), loaded):
        assert isinstance(again, DTensor)
        assert again.placements == x.placements
        assert again.device_mesh == mesh
        assert again.requires_grad
        assert torch.equal(again._local_tensor, x._local_tensor)
        assert again._local_tensor.data_ptr() != x._local_tensor.data_ptr()


def test_a_plain_state_dict_loads_into_a_distributed_module(mesh) -> None:
    plain = Stack(8)
    module = distribute_module(Stack(8), mesh)
    module.load_state_dict(plain.state_dict())
    assert torch.equal(module.seq[0].weight.to_local(), plain.seq[0].weight)


PLACEMENTS = (
    Replicate(), Shard(0), Shard(1), _StridedShard(0, split_factor=2),
    _StridedShard(1, split_factor=3),
)  # fmt: skip


@pytest.mark.parametrize("source", [0, None])
@pytest.mark.parametrize("mesh_shape", [(3,), (2, 2)])
def test_every_rank_gets_the_slices_of_its_placements(
    mesh_shape: tuple[int, ...], source: int | None
) -> None:
    """Slices of the full tensor by `held_extents`, for even, uneven, short and empty shards."""

    def body() -> None:
        mesh = kept_mesh(mesh_shape)
        coords = mesh.get_coordinate()
        assert coords is not None
        for placements in itertools.product(PLACEMENTS, repeat=len(mesh_shape)):
            for shape in ((0, 4), (1, 7), (5, 6), (8, 3)):
                full = torch.arange(float(math.prod(shape))).reshape(shape)
                placed = distribute_tensor(full, mesh, placements, src_data_rank=source)
                part = full
                for dim, size in enumerate(shape):
                    shardings = shardings_of(placed.placements, mesh_shape, coords, dim)
                    rows = [
                        torch.arange(each.offset, each.offset + each.size)
                        for each in held_extents(size, shardings)
                    ]
                    part = part.index_select(dim, torch.cat(rows) if rows else torch.arange(0))
                assert torch.equal(placed.to_local(), part), (placements, shape)
                assert torch.equal(placed.full_tensor(), full), (placements, shape)

    run_threads(body, math.prod(mesh_shape))
