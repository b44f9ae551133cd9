"""Random numbers drawn in blocks equal those drawn at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from dtensor_core import Placement, Replicate, Shard, _StridedShard, sharded_rng
from dtensor_core.layout import stride_like
from dtensor_core.operators.random import local as random
from dtensor_core.spec import Spec, TensorMeta

IN_BLOCKS = {name: each for name, each in random.SAMPLERS.items() if each.grain is not None}
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "geometric": (0.3,),
    "bernoulli.float": (0.3,),
    "bernoulli.p": (0.3,),
    "random.from": (3, 9),
    "random.to": (9,),
    "randint_like": (9,),
    "randint_like.low_dtype": (3, 9),
    "randint_like.low_generator_dtype": (3, 9),
}


class Grid:
    """Minimal DeviceMesh for specs, seen from a coordinate."""

    mesh_dim_names = None
    device_type = "cpu"

    def __init__(self, shape: tuple[int, ...], coords: list[int]) -> None:
        self.shape, self.ndim, self.coords = shape, len(shape), coords

    def get_coordinate(self) -> list[int]:
        return self.coords


@st.composite
def specs(draw: Callable[..., Any]) -> Spec:
    """A tensor of up to three dims in any memory order, on a mesh of one or two axes."""
    shape = torch.Size(
        draw(st.lists(st.sampled_from([1, 2, 5, 7, 16, 40]), min_size=1, max_size=3))
    )
    order = draw(st.permutations(range(len(shape))))
    stride = stride_like(shape, [place + 1 for place in order])
    mesh_shape = draw(st.sampled_from([(3,), (4,), (2, 2)]))
    dims = range(len(shape))
    choices: list[Placement] = [Replicate(), *(Shard(dim) for dim in dims)]
    choices += [_StridedShard(dim, split_factor=2) for dim in dims]
    placements = [draw(st.sampled_from(choices)) for _ in mesh_shape]
    coords = [draw(st.integers(0, size - 1)) for size in mesh_shape]
    grid: Any = Grid(mesh_shape, coords)
    return Spec(grid, placements, TensorMeta(shape, stride, torch.float32))


@pytest.mark.parametrize("name", sorted(IN_BLOCKS))
@settings(max_examples=40)
@given(spec=specs(), dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]))
def test_blocks_give_what_one_draw_gives(name: str, spec: Spec, dtype: torch.dtype):
    sampler, sizes = IN_BLOCKS[name], []

    def fill(full: torch.Tensor) -> None:
        sizes.append(full.numel())
        sampler.fill(full, *sampler.first, *ARGUMENTS.get(name, ()))

    with torch.random.fork_rng():
        torch.manual_seed(3)
        full = torch.empty_strided(spec.shape, spec.stride, dtype=dtype)
        fill(full)
        state = torch.get_rng_state()
        sizes.clear()
        torch.manual_seed(3)
        local = torch.empty(spec.local_shape, dtype=dtype)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sharded_rng, "BLOCK", 32)
            sharded_rng.draw(fill, local, spec, sampler.grain)
        assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(local, spec.part_of(full), rtol=0, atol=0)
    assert sum(sizes) == math.prod(spec.shape)
    if spec.local_shape != tuple(spec.shape):
        assert max(sizes) < 32 + 16


def test_samplers_are_tried_out_with_data_where_tensors_are_fake():
    with FakeTensorMode():
        found = random._one_by_one(torch.ops.aten.bernoulli_.float, 0.5)
    assert found == random._BERNOULLI


@settings(max_examples=40)
@given(spec=specs())
def test_what_is_embedded_is_the_part(spec: Spec):
    full = torch.arange(math.prod(spec.shape)).view(spec.shape)
    part = spec.part_of(full)
    embedded = sharded_rng.embed(part, spec, torch.full_like(full, -1))
    assert torch.equal(spec.part_of(embedded), part)
    assert (embedded != -1).sum() == part.numel()


class PhiloxModel:
    """Model of a CUDA generator and the kernel that draws from it, following torch's sources.

    A number is identified by (thread, count, index within a call).

    Source: ATen/native/cuda/DistributionTemplates.h.
    """

    def __init__(self, threads: int, per_call: int) -> None:
        self.offset, self.threads, self.per_call, self.drawn = 12, threads, per_call, 0

    def get_offset(self) -> int:
        return self.offset

    def set_offset(self, offset: int) -> None:
        self.offset = offset

    def fill(self, full: torch.Tensor) -> None:
        count = full.numel()
        block = 2  # threads of a block of the grid
        grid = min(self.threads, -(-count // block) * block)
        flat = torch.arange(count)
        call, within = flat // (grid * self.per_call), flat % (grid * self.per_call)
        numbers = (self.offset + call * 4) * 1000 + within % grid * 10 + within // grid
        order = sorted(range(full.ndim), key=lambda dim: -full.stride(dim))
        ordered = full.permute(order)
        ordered.copy_(numbers.view(ordered.shape))
        self.offset += ((count - 1) // (grid * self.per_call) + 1) * 4
        self.drawn += count


@pytest.mark.parametrize("per_call", [2, 4])
@settings(max_examples=60)
@given(spec=specs())
def test_a_block_is_drawn_alone_where_the_generator_counts(per_call: int, spec: Spec):
    total, threads = math.prod(spec.shape), 6
    size = threads * 4 * 2
    assume(total > size)
    one = PhiloxModel(threads, per_call)
    full = torch.empty_strided(spec.shape, spec.stride, dtype=torch.int64)
    one.fill(full)
    mine: Any = PhiloxModel(threads, per_call)
    local = torch.empty(spec.local_shape, dtype=torch.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharded_rng, "BLOCK", 16)
        stream = sharded_rng.Counted(mine.fill, local, total, size, mine)
        sharded_rng._keep_of(stream, local, spec)
        stream.end()
    assert torch.equal(local, spec.part_of(full))
    assert mine.offset == one.offset


def test_of_a_tensor_sharded_along_its_outermost_dim_only_the_shard_is_drawn():
    grid: Any = Grid((8,), [5])
    spec = Spec(grid, [Shard(0)], TensorMeta(torch.Size((800, 6)), (6, 1), torch.float32))
    model: Any = PhiloxModel(6, 4)
    local = torch.empty(spec.local_shape)
    stream = sharded_rng.Counted(model.fill, local, 4800, 48, model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharded_rng, "BLOCK", 16)
        sharded_rng._keep_of(stream, local, spec)
    assert local.numel() == 600
    assert model.drawn <= 600 + 3 * 48  # the first block, and those that the part's ends share
