"""Windows of a sharded dim, and patches of images as columns and back: the rows that are sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from dtensor_core import Partial, Shard, init_device_mesh
from dtensor_core.testing.fake import fake_world
from dtensor_core.testing.threads import kept_mesh, on_threads
from tests.dtensor_core.counting import Messages, Sent
from tests.dtensor_core.operators.agreement import assert_agrees, laid_out

RANKS, ITEMSIZE = 4, 8
SIZE, KERNEL = 64, 3


def _t(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(shape[-1])
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def _columns(x: Any) -> Any:
    return F.unfold(x, KERNEL, padding=1)


def _image(x: Any) -> Any:
    return F.fold(x, (SIZE, SIZE), KERNEL, padding=1)


# A row of 4 samples of 8 channels, and a row of patches, which holds 9 values for each position.
ROW, PATCHES = 4 * 8 * SIZE, 4 * 8 * 9 * SIZE
# The call, the sharded dims of its argument and of its result, and what rank 1 sends forward and
# backward. It has rows 16 to 31, and the 16 rows of patches around these, of which the first sees
# row 15 and the last row 32: rows 16 and 31 go to its neighbours, as do the rows of patches around
# them.
SENT: dict[str, tuple[Callable[[Any], Any], int, int, int, int]] = {
    "samples": (_columns, 0, 0, 0, 0),
    "channels": (_columns, 1, 1, 0, 0),
    "rows": (_columns, 2, 2, 2 * ROW, 2 * PATCHES),
    "columns of samples": (_image, 0, 0, 0, 0),
    "columns of channels": (_image, 1, 1, 0, 0),
    "columns of patches": (_image, 2, 2, 2 * PATCHES, 2 * ROW),
    # Patches that do not overlap and lie within one rank's rows.
    "tiles": (lambda x: F.unfold(x, 4, stride=4), 2, 2, 0, 0),
    "columns of tiles": (lambda x: F.fold(x[:, :72], (192, 192), 3, stride=3), 2, 2, 0, 0),
}


@pytest.mark.parametrize("name", SENT)
def test_patches_of_rows_that_are_sharded_send_the_rows_around(name: str) -> None:
    call, given, made, there, back = SENT[name]
    shape = (4, 72, SIZE * SIZE) if "columns" in name else (4, 8, SIZE, SIZE)
    with fake_world(RANKS, rank=1):
        x = laid_out(_t(*shape), init_device_mesh("cpu", (RANKS,)), [Shard(given)])
        with Messages() as sent:
            y = call(x)
        assert y.placements == (Shard(made),)
        assert sent.all == [("all_to_all", there)] * bool(there)
        ones: Any = torch.ones_like(y)
        grad = ones.redistribute(placements=[Shard(made)])
        with Messages() as sent:
            gradient: Any
            (gradient,) = torch.autograd.grad(y, [x], grad)
        assert gradient.placements == (Shard(given),)
        assert sent.all == [("all_to_all", back)] * bool(back)


@pytest.mark.usefixtures("rows_move")
@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 2},
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": (3, 2), "stride": 2, "padding": (1, 0)},
        {"kernel_size": 2, "dilation": 2},
        {"kernel_size": 2, "stride": 3},
        {"kernel_size": (1, 3), "padding": (2, 1)},
    ],
    ids=str,
)
def test_patches_of_rows_that_are_sharded_agree_and_so_do_their_gradients(options: Any) -> None:
    def columns(x: Any) -> Any:
        return F.unfold(x, **options)

    for height in (5, 8, 11):
        x = _t(2, 3, height, 5)
        full = columns(x).detach().requires_grad_()
        assert_agrees(columns, [x], [[Shard(2)]])
        assert_agrees(columns, [x[0].detach().requires_grad_()], [[Shard(1)]])
        for other in (0, 1):  # some ranks have no part of a single sample, nor of a single channel
            few = x[:1, :1].detach().requires_grad_()
            assert_agrees(columns, [x], [[Shard(other), Shard(2)]], mesh_shape=(2, 2))
            assert_agrees(columns, [few], [[Shard(2), Shard(other)]], mesh_shape=(2, 2))
        for layout in ([Shard(2)], [Partial()]):
            assert_agrees(lambda c: F.fold(c, (height, 5), **options), [full], [layout])  # noqa: B023


@pytest.mark.usefixtures("rows_move")
@pytest.mark.parametrize("window", [(3, 1), (2, 2), (2, 3), (1, 4)], ids=str)
def test_windows_of_a_dim_that_is_sharded_agree_and_so_do_their_gradients(
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
