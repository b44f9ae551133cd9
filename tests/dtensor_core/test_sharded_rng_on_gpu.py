"""Random numbers of shards match a single device, on a GPU; ranks are simulated."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from dtensor_core import Placement, Replicate, Shard, sharded_rng
from dtensor_core.layout import stride_like
from dtensor_core.spec import Spec, TensorMeta
from tests.dtensor_core.test_sharded_rng import ARGUMENTS, IN_BLOCKS, Grid

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU; a model of its generator is tested without"
)

SHAPES = [(7,), (1000, 64), (3, 5, 4099), (4096, 1031)]
MESHES: list[tuple[tuple[int, ...], list[int]]] = [((4,), [0]), ((4,), [3]), ((2, 2), [1, 0])]


def placements_of(ndim: int, axes: int) -> list[tuple[Placement, ...]]:
    each: list[Placement] = [Replicate(), *map(Shard, range(ndim))]
    return list(itertools.product(each, repeat=axes))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", sorted(IN_BLOCKS))
def test_shards_have_the_numbers_of_one_device(name: str, dtype: torch.dtype) -> None:
    sampler = IN_BLOCKS[name]

    def fill(full: torch.Tensor) -> None:
        sampler.fill(full, *sampler.first, *ARGUMENTS.get(name, ()))

    for shape in SHAPES:
        torch.cuda.manual_seed(3)
        full = torch.empty(shape, dtype=dtype, device="cuda")
        fill(full)
        state = torch.cuda.get_rng_state()
        for mesh_shape, coords in MESHES:
            grid: Any = Grid(mesh_shape, coords)
            for placements in placements_of(len(shape), len(mesh_shape)):
                size = torch.Size(shape)
                meta = TensorMeta(size, stride_like(size, list(range(len(shape), 0, -1))), dtype)
                spec = Spec(grid, list(placements), meta)
                torch.cuda.manual_seed(3)
                local = torch.empty(spec.local_shape, dtype=dtype, device="cuda")
                sharded_rng.draw(fill, local, spec, sampler.grain)
                assert torch.equal(torch.cuda.get_rng_state(), state), (shape, placements, coords)
                torch.testing.assert_close(
                    local,
                    spec.part_of(full),
                    rtol=1e-6 if "exponential" in name else 0,
                    atol=0,
                    msg=lambda text, at=(shape, placements, coords): f"{at}: {text}",
                )


@pytest.mark.parametrize("dim", [0, 1])
def test_the_memory_beyond_the_shard_is_bounded(dim: int) -> None:
    size = torch.Size((1 << 16, 1 << 12))
    spec = Spec(Grid((4,), [2]), [Shard(dim)], TensorMeta(size, (1 << 12, 1), torch.float32))  # type: ignore[arg-type]
    local = torch.empty(spec.local_shape, device="cuda")
    sampler = IN_BLOCKS["normal"]
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    sharded_rng.draw(lambda full: sampler.fill(full, *sampler.first), local, spec, sampler.grain)
    beyond = torch.cuda.max_memory_allocated() - before
    assert beyond < math.prod(size) * 4 / 8
