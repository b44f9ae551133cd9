"""Interpolation of sharded dims: the rows that ranks exchange, and agreement with one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from dtensor_core import Partial, Placement, Replicate, Shard, init_device_mesh
from dtensor_core.testing.fake import fake_world
from tests.dtensor_core.counting import Messages
from tests.dtensor_core.operators.agreement import assert_agrees, laid_out

RANKS, ITEMSIZE = 4, 8
R, P = Replicate(), Partial()


def _t(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape) * 100 + shape[-1])
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


# The call, and the rows that rank 1, which holds rows 16 to 31 of 64, sends forward and backward.
RESAMPLED: dict[str, tuple[Callable[[Any], Any], int, int]] = {
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), 0, 0),
    # Row i depends on those around i / 2 - 1/4: one more to either side.
    # Row r is part of rows 2r - 1 to 2r + 2: of 32 to 63 in rank 1, row 32 of rank 0's and 63 of
    # rank 2's.
    "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), 2, 2),
    # Row i is at i / 3 - 1/3 and reads four rows from one before it: row 48 reads 14 to 17. Row
    # 15, of rank 0, is read up to row 51, row 32, of rank 2, from row 91 on, there with weight 0.
    "bicubic": (lambda x: F.interpolate(x, scale_factor=3, mode="bicubic"), 4, 9),
    # Row i is the mean of 2i and 2i + 1.
    "half": (lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear"), 0, 0),
    # Row i depends on rows 2i - 1 to 2i + 2; row 15 is part of row 8, row 32 of row 15.
    "half, antialiased": (
        lambda x: F.interpolate(x, size=(32, 64), mode="bilinear", antialias=True),
        2,
        2,
    ),
    # Row i is at 4i / 3 + 1/6, of 12 a rank: 0 to 11 end at 14.83, 12 to 23 are 16.17 to 30.83.
    # No rank needs a halo forward or backward.
    "three quarters": (lambda x: F.interpolate(x, size=(48, 64), mode="bilinear"), 0, 0),
    # Row i is at 63i / 127, of 32 a rank: 31 between 15 and 16, 64 at 31.7, 63 at 31.25. Row 15
    # is part of rows 29 to 32 (15.87), row 32 of rows 63 to 66.
    "corners": (
        lambda x: F.interpolate(x, size=(128, 64), mode="bilinear", align_corners=True),
        2,
        2,
    ),
    # Row i is at (i + 1/2) / 1.3 - 1/2, of 83 rows ranks have 21, 21, 21 and 20. Rank 0's end at
    # 15.27 and see row 16, rank 2's start at 32.19. Row 32 is part of row 41 (31.42) too.
    "by a factor": (
        lambda x: F.interpolate(x, scale_factor=(1.3, 1.0), mode="bilinear"),
        1,
        1,
    ),
}


@pytest.mark.parametrize("name", RESAMPLED)
def test_interpolation_sends_the_rows_around_and_their_gradients(name: str) -> None:
    call, rows, gradients = RESAMPLED[name]
    with fake_world(RANKS, rank=1):
        x = laid_out(_t(2, 8, 64, 64), init_device_mesh("cpu", (RANKS,)), [Shard(2)])
        with Messages() as sent:
            y = call(x)
        assert y.placements == (Shard(2),)
        assert sent.all == [("all_to_all", rows * 2 * 8 * 64)] * bool(rows)
        grad = torch.ones_like(y).redistribute(placements=[Shard(2)])
        with Messages() as sent:
            (back,) = torch.autograd.grad(y, [x], grad)
        assert sent.all == [("all_to_all", gradients * 2 * 8 * y.shape[3])] * bool(gradients)
        assert back.placements == (Shard(2),)


WAYS: dict[str, dict[str, Any]] = {
    "nearest": {},
    "nearest-exact": {},
    "bilinear": {},
    "bicubic": {},
    "area": {},
    "bilinear, corners": {"align_corners": True},
    "bicubic, corners": {"align_corners": True},
    "bilinear, antialiased": {"antialias": True},
    "bicubic, antialiased": {"antialias": True},
}


@pytest.mark.usefixtures("rows_move")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("layout", [[Shard(2), Shard(3)], [Shard(0), Shard(2)]], ids=str)
def test_interpolation_agrees_where_rows_are_sharded(way: str, layout: list[Placement]) -> None:
    options = {"mode": way.partition(",")[0], **WAYS[way]}
    for size, out in ((4, 8), (3, 9), (10, 5), (4, 4), (5, 7), (9, 2), (6, 1)):
        assert_agrees(
            lambda x: F.interpolate(x, size=(out, 6), **options),  # noqa: B023
            [_t(2, 1, size, 3)],
            [layout],
            mesh_shape=(2, 2),
        )


@pytest.mark.usefixtures("rows_move")
@pytest.mark.parametrize("factor", [1.3, 0.7, 2.6])
def test_interpolation_by_factors_agrees_where_rows_are_sharded(factor: float) -> None:
    for mode in ("linear", "nearest"):
        for options in ({}, {"recompute_scale_factor": True}):
            assert_agrees(
                lambda x: F.interpolate(x, scale_factor=factor, mode=mode, **options),  # noqa: B023
                [_t(2, 2, 11)],
                [[Shard(2)]],
            )
    assert_agrees(
        lambda x: F.interpolate(x, scale_factor=factor, mode="trilinear"),
        [_t(1, 2, 5, 4, 6)],
        [[Shard(2), Shard(4)]],
        mesh_shape=(2, 2),
    )
    assert_agrees(
        lambda x: F.interpolate(x.bfloat16(), scale_factor=factor, mode="bilinear"),
        [_t(1, 2, 8, 4)],
        [[Shard(2)]],
        tolerance=2e-2,
    )


@pytest.mark.parametrize(
    ("mode", "size", "corners"),
    [("linear", 2, True), ("linear", 15, True), ("linear", 4, False), ("linear", 24, False),
     ("bicubic", 24, False), ("bicubic", 15, True), ("bilinear", 15, True), ("nearest", 24, None)],
)  # fmt: skip
def test_rows_that_are_read_with_weight_zero_make_nan_as_on_one_device(
    mode: str, size: int, corners: bool | None
) -> None:
    dims = 1 if mode == "linear" else 2
    full = _t(2, 3, 8, *[5] * (dims - 1)).detach()
    full[0, 0, 3], full[1, 1, 4] = float("nan"), float("nan")
    sizes = [size, *[5] * (dims - 1)]

    def program(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, sizes, mode=mode, align_corners=corners)

    assert_agrees(program, [full.requires_grad_()], [[Shard(2)]])
