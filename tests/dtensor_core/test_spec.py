"""Specs are interned, and derived values follow from their placements."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
import torch.distributed as dist

from dtensor_core import mesh as mesh_module
from dtensor_core.mesh import DeviceMesh, init_device_mesh
from dtensor_core.placement import Partial, Placement, Replicate, Shard, _StridedShard
from dtensor_core.spec import Spec, TensorMeta
from dtensor_core.testing.fake import fake_world


@pytest.fixture
def mesh():
    with fake_world(8):
        yield init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> TensorMeta:
    tensor = torch.empty(shape, dtype=dtype, device="meta")
    return TensorMeta(tensor.shape, tensor.stride(), tensor.dtype)


def test_equal_specs_are_one_object(mesh: DeviceMesh) -> None:
    first = Spec(mesh, (Shard(0), Replicate()), meta(8, 16))
    assert Spec(mesh, [Shard(0), Replicate()], meta(8, 16)) is first
    assert copy.deepcopy(first) is first


@pytest.mark.parametrize(
    ("placements", "shape", "dtype"),
    [
        ((Shard(1), Replicate()), (8, 16), torch.float32),
        ((Shard(0), Replicate()), (8, 17), torch.float32),
        ((Shard(0), Replicate()), (8, 16), torch.bfloat16),
    ],
)
def test_different_specs_differ(
    mesh: DeviceMesh, placements: tuple[Placement, ...], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    assert Spec(mesh, placements, meta(*shape, dtype=dtype)) is not Spec(
        mesh, (Shard(0), Replicate()), meta(8, 16)
    )


def test_specs_without_references_are_forgotten(mesh: DeviceMesh) -> None:
    gc.collect()
    before = len(Spec._interned)
    Spec(mesh, (Shard(0), Shard(1)), meta(123, 457))
    gc.collect()
    assert len(Spec._interned) == before


def test_text_has_dtype_shape_axes_and_placements(mesh: DeviceMesh) -> None:
    assert Spec(mesh, (Shard(0), Partial()), meta(8, 16)).text == "f32[8,16] dp:S(0) tp:P(sum)"
    unnamed = init_device_mesh("cpu", (8,))
    assert Spec(unnamed, (Replicate(),), meta(dtype=torch.bool)).text == "bool[] axis0:R"


def test_derived_counts(mesh: DeviceMesh) -> None:
    spec = Spec(mesh, (Shard(1), Shard(1)), meta(3, 17))
    assert spec.num_shards == 8
    assert spec.num_shards_map == [1, 8]
    assert spec.dim_map == [-1, 1]
    assert spec.sums == []
    assert spec.is_sharded()
    assert not spec.is_even
    assert spec.local_shape == (3, 3)  # rank 0: ceil(ceil(17 / 2) / 4)
    partial = Spec(mesh, (Partial(), Replicate()), meta(3))
    assert partial.sums == [0]
    assert not partial.is_replicated()
    assert partial.replicated().is_replicated()


def test_what_a_strided_shard_holds(mesh: DeviceMesh) -> None:
    spec = Spec(mesh, (Replicate(), _StridedShard(0, split_factor=2)), meta(16))
    assert [(piece.offset, piece.size) for piece in spec.extents(0)] == [(0, 2), (8, 2)]


def test_a_rank_outside_of_the_mesh_holds_nothing() -> None:
    with fake_world(4):
        assert dist.get_rank() == 0
        others = DeviceMesh("cpu", [2, 3])
        spec = Spec(others, (Shard(0),), meta(8, 16))
        assert spec.coords is None
        assert spec.local_shape == (0,)
        assert spec.part_of(torch.ones(8, 16)).shape == (0,)


def test_a_mesh_of_destroyed_groups_is_not_taken_for_its_successor() -> None:
    specs = []
    for _ in range(2):
        with fake_world(4):
            mesh = init_device_mesh("cpu", (4,))
            specs.append(Spec(mesh, (Shard(0),), meta(8)))
            assert specs[-1].mesh is mesh
    assert specs[0].mesh == specs[1].mesh
    assert specs[0] is not specs[1]


def test_slices_of_one_mesh_are_one(mesh: DeviceMesh) -> None:
    assert Spec(mesh["tp"], (Shard(0),), meta(8)) is Spec(mesh["tp"], (Shard(0),), meta(8))


def test_an_unused_mesh_is_forgotten(mesh: DeviceMesh) -> None:
    gc.collect()
    before = len(mesh_module._identities), len(mesh_module._by_object)
    Spec(init_device_mesh("cpu", (8,)), (Shard(0),), meta(8))
    gc.collect()
    assert (len(mesh_module._identities), len(mesh_module._by_object)) == before
