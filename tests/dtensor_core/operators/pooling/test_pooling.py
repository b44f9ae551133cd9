"""Pooling: shardings, and halo rows exchanged between neighbours, derived by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from dtensor_core import Partial, Replicate, Shard, init_device_mesh
from dtensor_core.testing.fake import fake_world
from dtensor_core.testing.threads import kept_mesh, on_threads
from tests.dtensor_core.counting import Collectives, Messages, Sent
from tests.dtensor_core.operators.agreement import assert_agrees, laid_out

RANKS, ITEMSIZE = 4, 8
R, P = Replicate(), Partial()


def _t(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape) * 100 + shape[-1])
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


# kernel, stride, padding, ceil_mode of the sharded dim, and its sizes.
SETTINGS = [
    (3, 2, 1, False, (16, 7)),
    (3, 1, 1, False, (11,)),
    (2, 2, 0, False, (16, 9, 3)),
    (2, 3, 1, True, (8, 5)),
    (4, 3, 2, True, (11, 4)),
]


@pytest.mark.usefixtures("rows_move")
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_pools_of_rows_that_are_sharded_agree_and_so_do_their_gradients(setting: Any) -> None:
    kernel, stride, pad, ceil, sizes = setting
    window = ((kernel, 2), (stride, 2), (pad, 0))

    def pools(x: Any) -> Any:
        highest, indices = F.max_pool2d(x, *window, ceil_mode=ceil, return_indices=True)
        return (
            highest,
            indices,
            F.avg_pool2d(x, *window, ceil, count_include_pad=True),
            F.avg_pool2d(x, *window, ceil, count_include_pad=False),
            F.avg_pool2d(x, *window, ceil, divisor_override=5),
            F.lp_pool2d(x.abs(), 2, window[0], window[1], ceil),
        )

    for size in sizes:
        assert_agrees(pools, [_t(2, size, 5, 4)], [[Shard(1)]])


@pytest.mark.usefixtures("rows_move")
@pytest.mark.parametrize(
    "sizes", [(8, 4), (9, 3), (6, 6), (12, 1), (7, 3), (5, 8), (9, 7)], ids=str
)
def test_adaptive_pools_of_rows_that_are_sharded_agree(sizes: tuple[int, int]) -> None:
    size, out = sizes

    def pools(x: Any) -> Any:
        highest, indices = F.adaptive_max_pool2d(x, (out, 3), return_indices=True)
        return highest, indices, F.adaptive_avg_pool2d(x, (out, 2))

    assert_agrees(pools, [_t(2, size, 5)], [[Shard(1)]])


@pytest.mark.usefixtures("rows_move")
@pytest.mark.parametrize(
    "layout",
    [[Shard(2), Shard(3)], [Shard(3), Shard(2)], [Shard(1), Shard(3)], [Shard(2)] * 2],
    ids=str,
)
def test_pools_agree_where_two_axes_shard(layout: list[Any]) -> None:
    def pools(x: Any) -> Any:
        highest, indices = F.max_pool2d(x, 3, 2, 1, return_indices=True)
        return highest, indices, F.avg_pool2d(x, 3, 2, 1, True, False)

    assert_agrees(pools, [_t(1, 2, 7, 6)], [layout], mesh_shape=(2, 2))


@pytest.mark.parametrize("pool", [F.adaptive_avg_pool2d, F.adaptive_max_pool2d])
@pytest.mark.parametrize(
    ("size", "out", "rows", "gradients"),
    [
        # Seven windows on 64 rows, of which ranks have 2, 2, 2 and 1. Those of rank 0 see rows 0 to
        # 18, of which rank 1 has 16 to 18; those of rank 2 start at row 36, which is its own.
        # Window 3 sees rows 27 to 36: its gradient goes to rank 2.
        (64, 7, 3, 1),
        # Five windows on 22 rows, of which ranks hold 6, 6, 6 and 4: windows 2, 2, 1 and none.
        # Those of rank 0 see rows 0 to 8, those of rank 1 8 to 17, that of rank 2 17 to 21: rank 1
        # sends 6 to 8 and 17 is rank 2's. Window 2 sees 8 to 13 and window 3 13 to 17, and rank 2
        # holds 12 to 17: it needs both.
        (22, 5, 3, 2),
        # More windows than rows: 3 a rank, of which w sees rows 2w/3 to 2(w+1)/3. Those of rank 1
        # see rows 2 and 3, which are its own and which no other rank needs.
        (8, 12, 0, 0),
    ],
)
def test_an_adaptive_pool_sends_the_rows_that_its_windows_see(
    pool: Any, size: int, out: int, rows: int, gradients: int
) -> None:
    # Gradients of a maximum are sent with their indices.
    exchanges = 1 if pool is F.adaptive_avg_pool2d else 2

    @on_threads(RANKS)
    def body() -> None:
        mesh = kept_mesh((RANKS,))
        x = laid_out(_t(16, size, 24), mesh, [Shard(1)])
        with Messages() as forward:
            y = pool(x, (out, 6))
        grad = torch.ones_like(y).redistribute(placements=[Shard(1)])
        with Messages() as backward:
            (back,) = torch.autograd.grad(y, [x], grad)
        assert y.placements == back.placements == (Shard(1),)
        if mesh.get_local_rank() == 1:
            assert forward.all == [("all_to_all", rows * 16 * 24)] * bool(rows)
            assert backward.all == [("all_to_all", gradients * 16 * 6)] * exchanges * bool(rows)

    body()


@pytest.mark.usefixtures("rows_move")
def test_adaptive_pools_agree_where_two_axes_shard() -> None:
    def pools(x: Any) -> Any:
        highest, indices = F.adaptive_max_pool2d(x, (5, 3), return_indices=True)
        return highest, indices, F.adaptive_avg_pool2d(x, (3, 5))

    for layout in ([Shard(2), Shard(3)], [Shard(1), Shard(3)]):
        assert_agrees(pools, [_t(1, 2, 7, 8)], [layout], mesh_shape=(2, 2))


def test_windows_that_rows_are_divided_by_need_no_communication() -> None:
    pools: list[Callable[[Any], Any]] = [
        lambda x: F.max_pool2d(x, 2),
        lambda x: F.avg_pool2d(x, 2),
        lambda x: F.adaptive_avg_pool2d(x, (8, 4)),
        lambda x: F.adaptive_max_pool2d(x, (8, 4)),
    ]

    @on_threads(RANKS)
    def body() -> None:
        mesh = kept_mesh((RANKS,))
        for pool in pools:
            x = laid_out(_t(2, 3, 16, 8), mesh, [Shard(2)])
            with Collectives() as issued:
                y = pool(x)
                y.backward(torch.ones_like(y))
            assert issued == {}
            assert y.placements == (Shard(2),)
            assert x.grad.placements == (Shard(2),)  # pyright: ignore

    body()


def test_a_row_that_windows_share_is_sent_with_its_indices_backward() -> None:
    rows, width, images = 64, 64, 2

    def body(pool: Callable[[Any], Any], backward: list[int]) -> None:
        x = laid_out(_t(images, 8, rows, width), init_device_mesh("cpu", (RANKS,)), [Shard(2)])
        with Sent() as sent:
            y = pool(x)
        # Of windows of 3 rows that start at rows -1, 1, 3 the first of a rank sees one row above.
        assert sent.num_bytes == [images * 8 * width * ITEMSIZE]
        with Sent() as sent:
            y.backward(torch.ones_like(y).redistribute(placements=[Shard(2)]))
        assert sent.num_bytes == backward
        assert x.grad is not None
        assert x.grad.placements == (Shard(2),)  # pyright: ignore

    with fake_world(RANKS, rank=1):
        # The first row of the results, of half the width, depends on the last row of the rank
        # above.
        row = images * 8 * width // 2 * ITEMSIZE
        body(lambda x: F.avg_pool2d(x, 3, 2, 1), [row])
        body(lambda x: F.max_pool2d(x, 3, 2, 1), [row, row])


@pytest.mark.parametrize("layout", [Shard(0), Shard(1)], ids=str)
def test_samples_and_channels_need_no_communication(layout: Shard) -> None:
    def all_of_them(x: Any, samples: Any) -> list[Any]:
        values, indices = F.max_pool2d(x, 2, return_indices=True)
        return [
            values,
            F.avg_pool2d(x, 3, 1),
            F.adaptive_avg_pool2d(x, 3),
            F.adaptive_max_pool2d(x, 3),
            F.lp_pool2d(x.abs(), 2, 2),
            F.fractional_max_pool2d(x, 2, 2, _random_samples=samples),
            F.max_unpool2d(values, indices, 2),
        ]

    @on_threads(RANKS)
    def body() -> None:
        mesh = kept_mesh((RANKS,))
        x = laid_out(_t(4, 8, 6, 6), mesh, [layout])
        samples = laid_out(_t(4, 8, 2).sigmoid().detach(), mesh, [layout])
        with Collectives() as issued:
            results = all_of_them(x, samples)
            torch.autograd.grad(results, x, [torch.ones_like(each) for each in results])
        assert issued == {}
        assert [each.placements for each in results] == [(layout,)] * len(results)

    body()


def test_partial_sums_pass_an_average_and_no_maximum() -> None:
    @on_threads(RANKS)
    def body() -> None:
        x = laid_out(_t(2, 2, 4, 4), kept_mesh((RANKS,)), [P])
        with Collectives() as issued:
            assert F.avg_pool2d(x, 2).placements == (P,)  # pyright: ignore
            assert F.adaptive_avg_pool2d(x, 2).placements == (P,)  # pyright: ignore
        assert issued == {}
        with Collectives() as issued:
            assert not F.max_pool2d(x, 2).placements[0].is_partial()  # pyright: ignore
        assert issued != {}

    body()
