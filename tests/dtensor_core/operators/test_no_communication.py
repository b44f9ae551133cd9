"""Pixel shuffles, grids, distances, transforms: layouts that need no communication."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from dtensor_core import Partial, Placement, Replicate, Shard
from dtensor_core.testing.threads import kept_mesh, on_threads
from tests.dtensor_core.counting import Collectives
from tests.dtensor_core.operators.agreement import assert_agrees, laid_out

RANKS, ITEMSIZE = 4, 8
R, P = Replicate(), Partial()


def _t(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape) * 100 + shape[-1])
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


# The call, placements of its arguments and of its result, all without communication.
_G = torch.rand(4, 8, 4, 2, dtype=torch.float64) * 2 - 1
Free = tuple[Callable[..., Any], Sequence[torch.Tensor], Sequence[Placement], Placement]
FREE: dict[str, Free] = {
    "unfold": (lambda x: F.unfold(x, 2), [_t(4, 8, 5, 5)], [Shard(1)], Shard(1)),
    "fold": (lambda x: F.fold(x, (5, 5), 2), [_t(4, 32, 16)], [Shard(1)], Shard(1)),
    "pixels of rows": (lambda x: F.pixel_shuffle(x, 2), [_t(1, 4, 8, 3)], [Shard(2)], Shard(2)),
    "pixels of channels": (
        lambda x: F.pixel_shuffle(x, 2),
        [_t(1, 16, 3, 3)],
        [Shard(1)],
        Shard(1),
    ),
    "pixels back": (lambda x: F.pixel_unshuffle(x, 2), [_t(1, 4, 16, 4)], [Shard(2)], Shard(2)),
    "sampled channels": (
        lambda x, g: F.grid_sample(x, g, align_corners=False),
        [_t(4, 8, 3, 3), _G],
        [Shard(1), R],
        Shard(1),
    ),
    "points of a grid": (
        lambda x, g: F.grid_sample(x, g, align_corners=False),
        [_t(4, 8, 3, 3), _G.clone().requires_grad_()],
        [R, Shard(1)],
        Shard(2),
    ),
    "grids": (lambda x: F.affine_grid(x, [4, 1, 3, 5], False), [_t(4, 2, 3)], [Shard(0)], Shard(0)),
    "distances": (torch.cdist, [_t(8, 3), _t(5, 3)], [Shard(0), R], Shard(0)),
    "distances to": (torch.cdist, [_t(5, 3), _t(8, 3)], [R, Shard(0)], Shard(1)),
    "coordinates": (torch.cdist, [_t(5, 8), _t(3, 8)], [Shard(1), Shard(1)], Partial("norm2")),
    "pairs": (lambda x: F.pdist(x, 3.0), [_t(5, 8)], [Shard(1)], Partial("norm3")),
    "cross": (
        lambda x, y: torch.linalg.cross(x, y),
        [_t(8, 3), _t(8, 3)],
        [Shard(0)] * 2,
        Shard(0),
    ),
    "a cross of partial sums": (lambda x, y: torch.linalg.cross(x, y), [_t(8, 3)] * 2, [P, R], P),
    "turned": (lambda x: x.rot90(1, (0, 1)), [_t(8, 3)], [Shard(0)], Shard(1)),
    "transformed": (lambda x: torch.fft.rfft(x).abs(), [_t(8, 6)], [Shard(0)], Shard(0)),
    "transformed partial sums": (
        lambda x: torch.view_as_real(torch.fft.fft2(x)),
        [_t(8, 6)],
        [P],
        P,
    ),
    "a transform back": (lambda x: torch.fft.hfft(x), [_t(8, 6)], [Shard(0)], Shard(0)),
}


@pytest.mark.parametrize("name", FREE)
def test_nothing_is_sent(name: str) -> None:
    call, tensors, layouts, expected = FREE[name]

    @on_threads(RANKS)
    def body() -> None:
        mesh = kept_mesh((RANKS,))
        mine = [laid_out(t, mesh, [p]) for t, p in zip(tensors, layouts, strict=True)]
        with Collectives() as issued:
            y = call(*mine)
        assert issued == {}
        assert y.placements == (expected,)

    body()
    assert_agrees(call, tensors, [[each] for each in layouts])


def test_channels_are_shuffled_where_their_groups_are_not_sharded() -> None:
    for layout in (Shard(0), Shard(1), Shard(2)):
        assert_agrees(lambda x: F.channel_shuffle(x, 2), [_t(3, 16, 3, 2)], [[layout]])
