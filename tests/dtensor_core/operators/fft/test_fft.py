"""Fourier transforms of signals, sharded by number and by samples, and shared frames."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dtensor_core import Partial, Placement, Replicate, Shard, init_device_mesh
from dtensor_core.testing.fake import fake_world
from tests.dtensor_core.counting import Messages
from tests.dtensor_core.operators.agreement import assert_agrees, laid_out

RANKS, ITEMSIZE = 4, 8
R, P = Replicate(), Partial()


def _t(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape) * 100 + shape[-1])
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def _spectrogram(x: Any, window: Any, **options: Any) -> Any:
    return torch.view_as_real(torch.stft(x, 16, 8, window=window, return_complex=True, **options))


def test_a_spectrogram_of_sharded_signals_sends_nothing_and_of_frames_their_overlap() -> None:
    hop = 8
    window = torch.hann_window(16, dtype=torch.float64)
    with fake_world(RANKS, rank=1):
        mesh = init_device_mesh("cpu", (RANKS,))
        replicated = laid_out(window, mesh, [R])
        for center in (True, False):
            x = laid_out(_t(4, 256), mesh, [Shard(0)])
            with Messages() as sent:
                y = _spectrogram(x, replicated, center=center)
                grad = torch.ones_like(y).redistribute(placements=[Shard(0)])
                (back,) = torch.autograd.grad(y, [x], grad)
            assert sent.all == []
            assert y.placements == back.placements == (Shard(0),)
        # 31 frames, of which ranks have 8, 8, 8, 7, so that the last of a rank needs a hop more.
        x = laid_out(_t(64, 256), mesh, [Shard(1)])
        with Messages() as sent:
            y = _spectrogram(x, replicated, center=False)
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
