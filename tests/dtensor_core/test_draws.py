"""Drawing in blocks gives what drawing at once gives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dtensor_core import Placement, Replicate, Shard, _StridedShard, draws
from dtensor_core.layout import stride_like
from dtensor_core.rules.families.random import _SAMPLERS
from dtensor_core.spec import Spec, TensorMeta

IN_BLOCKS = {name: each for name, each in _SAMPLERS.items() if each.grain is not None}
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "geometric": (0.3,),
    "random.from": (3, 9),
    "random.to": (9,),
    "randint_like": (9,),
    "randint_like.low_dtype": (3, 9),
    "randint_like.low_generator_dtype": (3, 9),
}


class Grid:
    """As much of a DeviceMesh as a spec asks for, seen from one coordinate."""

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

    def fill(whole: torch.Tensor) -> None:
        sizes.append(whole.numel())
        sampler.fill(whole, *sampler.first, *ARGUMENTS.get(name, ()))

    with torch.random.fork_rng():
        torch.manual_seed(3)
        whole = torch.empty_strided(spec.shape, spec.stride, dtype=dtype)
        fill(whole)
        state = torch.get_rng_state()
        sizes.clear()
        torch.manual_seed(3)
        local = torch.empty(spec.local_shape, dtype=dtype)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(draws, "BLOCK", 32)
            draws.draw(fill, local, spec, sampler.grain)
        assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(local, spec.part_of(whole), rtol=0, atol=0)
    assert sum(sizes) == math.prod(spec.shape)
    if spec.local_shape != tuple(spec.shape):
        assert max(sizes) < 32 + 16


@settings(max_examples=40)
@given(spec=specs())
def test_what_is_embedded_is_the_part(spec: Spec):
    whole = torch.arange(math.prod(spec.shape)).view(spec.shape)
    part = spec.part_of(whole)
    embedded = draws.embed(part, spec, torch.full_like(whole, -1))
    assert torch.equal(spec.part_of(embedded), part)
    assert (embedded != -1).sum() == part.numel()
