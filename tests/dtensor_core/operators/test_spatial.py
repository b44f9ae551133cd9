"""Communication of interpolation, windows, pixel shuffles, grids, distances and transforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from dtensor_core import Partial, Placement, Replicate, Shard, init_device_mesh
from dtensor_core.testing.fake import fake_world
from dtensor_core.testing.threads import kept_mesh, on_threads
from tests.dtensor_core.counting import Collectives, Messages, Sent
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
    # Two rows on either side of i / 3 - 1/3: row 48 depends on 14 to 17. Row 15, of rank 0, is part
    # of the rows around 13 to 17; its weight is zero where these are 13 or 17: to row 51.
    "bicubic": (lambda x: F.interpolate(x, scale_factor=3, mode="bicubic"), 4, 8),
    # Row i is the mean of 2i and 2i + 1.
    "half": (lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear"), 0, 0),
    # Row i depends on rows 2i - 1 to 2i + 2; row 15 is part of row 8, row 32 of row 15.
    "half, antialiased": (
        lambda x: F.interpolate(x, size=(32, 64), mode="bilinear", antialias=True),
        2,
        2,
    ),
    # Row i lies at 4i / 3 + 1/6, of 12 a rank: 0 to 11 end at 14.83, 12 to 23 are 16.17 to 30.83.
    # No rank needs a halo forward or backward.
    "three quarters": (lambda x: F.interpolate(x, size=(48, 64), mode="bilinear"), 0, 0),
    # Row i lies at 63i / 127, of 32 a rank: 31 between 15 and 16, 64 at 31.7, 63 at 31.25. Row 15
    # is part of rows 29 to 32 (15.87), row 32 of rows 63 to 66.
    "corners": (
        lambda x: F.interpolate(x, size=(128, 64), mode="bilinear", align_corners=True),
        2,
        2,
    ),
    # Row i lies at (i + 1/2) / 1.3 - 1/2, of 83 rows ranks have 21, 21, 21 and 20. Rank 0's end at
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
def test_interpolation_agrees_where_rows_are_cut(way: str, layout: list[Placement]) -> None:
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
def test_interpolation_by_factors_agrees_where_rows_are_cut(factor: float) -> None:
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


@pytest.mark.usefixtures("rows_move")
@pytest.mark.parametrize("window", [(3, 1), (2, 2), (2, 3), (1, 4)], ids=str)
def test_windows_of_a_dim_that_is_cut_agree_and_so_do_their_gradients(
    window: tuple[int, int],
) -> None:
    for size in (3, 8, 11):
        assert_agrees(lambda x: x.unfold(1, *window), [_t(2, size, 3)], [[Shard(1)]])


def test_windows_send_the_rows_that_they_overlap_by() -> None:
    @on_threads(RANKS)
    def body() -> None:
        mesh = kept_mesh((RANKS,))
        x = laid_out(_t(16, 64), mesh, [Shard(0)])
        with Sent() as sent:
            y = x.unfold(0, 3, 1)
        # 14 windows, of which ranks have 4, 4, 4, 2, so that rank r sees rows 4r to 4r + 5.
        assert sent.num_bytes == [2 * 64 * ITEMSIZE * (mesh.get_local_rank() > 0)]
        assert y.placements == (Shard(0),)  # pyright: ignore

    body()


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
    "a cross of addends": (lambda x, y: torch.linalg.cross(x, y), [_t(8, 3)] * 2, [P, R], P),
    "turned": (lambda x: x.rot90(1, (0, 1)), [_t(8, 3)], [Shard(0)], Shard(1)),
    "transformed": (lambda x: torch.fft.rfft(x).abs(), [_t(8, 6)], [Shard(0)], Shard(0)),
    "transformed addends": (lambda x: torch.view_as_real(torch.fft.fft2(x)), [_t(8, 6)], [P], P),
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


def _spectrogram(x: Any, window: Any, **options: Any) -> Any:
    return torch.view_as_real(torch.stft(x, 16, 8, window=window, return_complex=True, **options))


def test_a_spectrogram_is_cut_by_signals_for_nothing_and_by_frames_for_what_they_overlap_by() -> (
    None
):
    hop = 8
    window = torch.hann_window(16, dtype=torch.float64)
    with fake_world(RANKS, rank=1):
        mesh = init_device_mesh("cpu", (RANKS,))
        held = laid_out(window, mesh, [R])
        for center in (True, False):
            x = laid_out(_t(4, 256), mesh, [Shard(0)])
            with Messages() as sent:
                y = _spectrogram(x, held, center=center)
                grad = torch.ones_like(y).redistribute(placements=[Shard(0)])
                (back,) = torch.autograd.grad(y, [x], grad)
            assert sent.all == []
            assert y.placements == back.placements == (Shard(0),)
        # 31 frames, of which ranks have 8, 8, 8, 7, so that the last of a rank needs a hop more.
        x = laid_out(_t(64, 256), mesh, [Shard(1)])
        with Messages() as sent:
            y = _spectrogram(x, held, center=False)
        assert sent.all == [("all_to_all", 64 * hop)]
        assert y.placements == (Shard(2),)
        # Rank 1 holds samples 64 to 127, which frames 7 to 15 see. It has frames 8 to 15, and
        # frame 15 reaches 8 samples into those of rank 2: one frame of 16 samples goes there.
        grad = torch.ones_like(y).redistribute(placements=[Shard(2)])
        with Messages() as sent:
            (back,) = torch.autograd.grad(y, [x], grad)
        assert sent.all == [("all_to_all", 64 * 16)]
        assert back.placements == (Shard(1),)


@pytest.mark.parametrize("layout", [Shard(0), Shard(1)], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"center": False},
        {"pad_mode": "reflect"},
        {"pad_mode": "constant", "onesided": False},
        {"pad_mode": "replicate", "normalized": True},
        {"win_length": 10},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:A window was not provided")
def test_a_spectrogram_and_its_gradients_agree(options: Any, layout: Placement) -> None:
    width = options.get("win_length", 16)
    window = torch.hann_window(width, dtype=torch.float64).requires_grad_()
    for size in (66, 50):
        assert_agrees(
            lambda x, w: _spectrogram(x, w, **options), [_t(3, size), window], [[layout], [R]]
        )
    assert_agrees(lambda x: _spectrogram(x, None, **options), [_t(3, 66)], [[layout]])
    assert_agrees(lambda x: _spectrogram(x, None, **options), [_t(66)], [[Shard(0)]])


def test_the_gradient_of_a_transform_of_signals_sends_nothing() -> None:
    def transform(x: Any) -> Any:
        return torch.view_as_real(torch.fft.rfft(x))

    with fake_world(RANKS, rank=1):
        x = laid_out(_t(10, 16), init_device_mesh("cpu", (RANKS,)), [Shard(0)])
        with Messages() as sent:
            y = transform(x)
            grad = torch.ones_like(y).redistribute(placements=[Shard(0)])
            (back,) = torch.autograd.grad(y, [x], grad)
        assert sent.all == []
        assert back.placements == (Shard(0),)
    assert_agrees(transform, [_t(10, 16)], [[Shard(0)]])


@pytest.mark.filterwarnings("ignore:A window was not provided")
def test_signals_come_back_without_a_window_too() -> None:
    frames = torch.complex(_t(4, 9, 6), _t(4, 9, 6)).detach()
    for layout in (Shard(0), Shard(2)):
        assert_agrees(lambda x: torch.istft(x, 16), [frames], [[layout]])


def test_channels_are_shuffled_where_their_groups_are_not_cut() -> None:
    for layout in (Shard(0), Shard(1), Shard(2)):
        assert_agrees(lambda x: F.channel_shuffle(x, 2), [_t(3, 16, 3, 2)], [[layout]])
