"""Convolutions: shardings, and halo rows exchanged between neighbours, derived by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from dtensor_core import Partial, Replicate, Shard, init_device_mesh
from dtensor_core.layout import local_extent
from dtensor_core.placement import _StridedShard
from dtensor_core.testing.fake import fake_world
from dtensor_core.testing.threads import kept_mesh, on_threads, run_threads
from tests.dtensor_core.counting import Collectives, Sent
from tests.dtensor_core.operators.agreement import assert_agrees, laid_out

RANKS, ITEMSIZE = 4, 8
R, P = Replicate(), Partial()


def _t(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape) * 100 + shape[-1])
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


Seen = Callable[[int], set[int]]


def windows(size: int, kernel: int, stride: int, padding: int, dilation: int) -> Seen:
    """Input rows that an output row of a convolution depends on."""
    return lambda o: {
        row
        for row in (o * stride - padding + k * dilation for k in range(kernel))
        if 0 <= row < size
    }


def reverse(seen: Seen, size: int) -> Seen:
    """Output rows, of `size`, that depend on an input row."""
    return lambda row: {o for o in range(size) if row in seen(o)}


def rows_of(size: int, rank: int) -> range:
    own = local_extent(size, RANKS, rank)
    return range(own.offset, own.offset + own.size)


def sent_rows(rank: int, size: int, result: int, seen: Seen) -> int:
    """Number of rows that a rank sends: of a tensor of `size`, for results of size `result`.

    Another rank needs all rows from the first to the last that its part of the result depends on.
    """
    total = 0
    for other in range(RANKS):
        rows = set().union(*(seen(o) for o in rows_of(result, other)))
        if rows and other != rank:
            total += len(set(rows_of(size, rank)) & set(range(min(rows), max(rows) + 1)))
    return total


# Sizes, and kernel, stride, padding, dilation.
SETTINGS = [
    (16, 3, 1, 1, 1),
    (11, 3, 2, 1, 1),
    (12, 5, 1, 0, 2),
    (9, 2, 3, 1, 1),
    (5, 3, 1, 2, 1),
    (3, 3, 1, 3, 1),
    (16, 2, 2, 0, 1),
    (4, 1, 1, 2, 1),
]


@pytest.mark.usefixtures("rows_move")
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_neighbours_send_the_rows_that_windows_overlap_and_their_gradients(
    setting: tuple[int, ...],
) -> None:
    size, *window = setting
    kernel, stride, padding, dilation = window
    x, weight, bias = _t(2, 3, size), _t(5, 3, kernel), _t(5)

    def convolve(x: Any, weight: Any, bias: Any) -> Any:
        return F.conv1d(x, weight, bias, stride, padding, dilation)

    out = convolve(x, weight, bias).shape[2]
    seen = windows(size, kernel, stride, padding, dilation)
    there = [2 * 3 * ITEMSIZE * sent_rows(rank, size, out, seen) for rank in range(RANKS)]
    back = [
        2 * 5 * ITEMSIZE * sent_rows(rank, out, size, reverse(seen, out)) for rank in range(RANKS)
    ]
    _sends_and_agrees(convolve, [x, weight, bias], there, _sums(there, back))


@pytest.mark.usefixtures("rows_move")
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_a_transposed_convolution_sends_what_windows_overlap_the_other_way(
    setting: tuple[int, ...],
) -> None:
    size, *window = setting
    kernel, stride, padding, dilation = window
    out = (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + 1
    if out <= 0:
        size, padding = 7, 0
        out = (size - 1) * stride + dilation * (kernel - 1) + 1
    x, weight, bias = _t(2, 3, size), _t(3, 5, kernel), _t(5)

    def convolve(x: Any, weight: Any, bias: Any) -> Any:
        return F.conv_transpose1d(x, weight, bias, stride, padding, dilation=dilation)

    seen = windows(out, kernel, stride, padding, dilation)
    there = [2 * 3 * ITEMSIZE * sent_rows(r, size, out, reverse(seen, size)) for r in range(RANKS)]
    back = [2 * 5 * ITEMSIZE * sent_rows(rank, out, size, seen) for rank in range(RANKS)]
    _sends_and_agrees(convolve, [x, weight, bias], there, _sums(there, back))


def _sums(one: list[int], other: list[int]) -> list[int]:
    return [a + b for a, b in zip(one, other, strict=True)]


def _sends_and_agrees(
    convolve: Callable[..., Any], tensors: list[torch.Tensor], forth: list[int], back: list[int]
) -> None:
    """Assert the bytes that each rank sends in an exchange; all tensors stay sharded by rows."""
    wanted = convolve(*tensors)
    gradients = torch.autograd.grad(wanted.sin().sum(), tensors)

    def body() -> None:
        mesh = init_device_mesh("cpu", (RANKS,))
        rank = mesh.get_local_rank()
        mine = [laid_out(t, mesh, [p]) for t, p in zip(tensors, (Shard(2), R, R), strict=True)]
        with Sent() as sent, Collectives() as issued:
            y = convolve(*mine)
        assert sent.num_bytes == ([forth[rank]] if any(forth) else [])
        assert issued == ({"all_to_all_single": 1} if any(forth) else {})
        assert y.placements == (Shard(2),)
        with Sent() as sent, Collectives() as issued:
            found = torch.ops.aten.convolution_backward(*_backward_arguments(y, mine))
        assert sent.num_bytes == ([back[rank]] if any(back) else [])
        assert issued == ({"all_to_all_single": 1} if any(back) else {})
        assert [each.placements for each in found] == [(Shard(2),), (P,), (P,)]
        torch.testing.assert_close(y.full_tensor(), wanted)
        for each, expected in zip(found, gradients, strict=True):
            torch.testing.assert_close(each.full_tensor(), expected)

    run_threads(body, RANKS)


def _backward_arguments(y: Any, tensors: Sequence[Any]) -> list[Any]:
    """Arguments of a convolution's backward, for the gradient of its result's sum of sines."""
    saved = y.grad_fn
    settings = [
        [getattr(saved, f"_saved_{name}")] if isinstance(getattr(saved, f"_saved_{name}"), int)
        else getattr(saved, f"_saved_{name}")
        for name in ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
    ]  # fmt: skip
    return [
        y.detach().cos(),
        *(t.detach() for t in tensors[:2]),
        [tensors[2].shape[0]],
        *settings[:3],
        bool(saved._saved_transposed),
        settings[4],
        saved._saved_groups,
        [True] * 3,
    ]


# x, weight, bias -> result.
FREE = {
    "samples": ([Shard(0), R, R], Shard(0)),
    "output channels": ([R, Shard(0), Shard(0)], Shard(1)),
    "input channels": ([Shard(1), Shard(1), R], P),
    "input channels, a partial bias": ([Shard(1), Shard(1), P], P),
    "partial sums": ([P, R, P], P),
    "partial weights": ([R, P, P], P),
}


@pytest.mark.parametrize("name", FREE)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_samples_channels_and_partial_sums_need_no_communication(name: str, dims: int) -> None:
    layouts, expected = FREE[name]
    convolve = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]

    @on_threads(RANKS)
    def body() -> None:
        mesh = kept_mesh((RANKS,))
        tensors = (_t(4, 8, *[3] * dims), _t(8, 8, *[2] * dims), _t(8))
        mine = [laid_out(t, mesh, [p]) for t, p in zip(tensors, layouts, strict=True)]
        with Collectives() as issued:
            y = convolve(*mine)
        assert issued == {}
        assert y.placements == (expected,)

    body()


def test_groups_are_sharded_like_channels() -> None:
    @on_threads(RANKS)
    def body() -> None:
        mesh = kept_mesh((RANKS,))
        x, weight = (
            laid_out(_t(2, 8, 5), mesh, [Shard(1)]),
            laid_out(_t(12, 2, 3), mesh, [Shard(0)]),
        )
        with Collectives() as issued:
            y = F.conv1d(x, weight, groups=4)
            y.sum().backward()
        assert issued == {}
        assert y.placements == (Shard(1),)  # pyright: ignore
        assert x.grad.placements == (Shard(1),)  # pyright: ignore
        assert weight.grad.placements == (Shard(0),)  # pyright: ignore

    body()


def test_gradients_where_input_channels_are_sharded_need_no_communication() -> None:
    @on_threads(RANKS)
    def body() -> None:
        mesh = kept_mesh((RANKS,))
        x, weight = laid_out(_t(2, 8, 5), mesh, [Shard(1)]), laid_out(_t(3, 8, 3), mesh, [Shard(1)])
        bias = laid_out(_t(3), mesh, [R])
        y = F.conv1d(x, weight, bias).redistribute(mesh, [R])
        with Collectives() as issued:
            y.sum().backward()
        assert issued == {}
        assert [t.grad.placements for t in (x, weight, bias)] == [(Shard(1),), (Shard(1),), (R,)]  # pyright: ignore

    body()


def test_along_two_axes_rows_across_the_corner_arrive_in_two_steps() -> None:
    height, width = 8, 6

    @on_threads(RANKS)
    def body() -> None:
        mesh = kept_mesh((2, 2))
        x = laid_out(_t(1, 1, height, width), mesh, [Shard(2), Shard(3)])
        with Sent() as sent:
            y = F.conv2d(x, laid_out(_t(1, 1, 3, 3), mesh, [R, R]), padding=1)
        # A row of half the width, then a column of half the height plus the received row.
        assert sent.num_bytes == [width // 2 * ITEMSIZE, (height // 2 + 1) * ITEMSIZE]
        assert y.placements == (Shard(2), Shard(3))  # pyright: ignore

    body()


LAYOUTS_2D = {
    "both spatial dims": [Shard(2), Shard(3)],
    "the other way round": [Shard(3), Shard(2)],
    "one dim twice": [Shard(2), Shard(2)],
    "in blocks": [_StridedShard(2, split_factor=2), Shard(2)],
    "samples and rows": [Shard(0), Shard(2)],
    "channels and rows": [Shard(1), Shard(3)],
}


@pytest.mark.parametrize("layout", LAYOUTS_2D)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("transposed", [False, True])
def test_on_two_axes_results_and_gradients_are_those_of_one_device(
    layout: str, groups: int, transposed: bool
) -> None:
    replicated = [[R, R]] * 2
    convolve = F.conv_transpose2d if transposed else F.conv2d
    weight = _t(4, 6 // groups, 3, 2) if transposed else _t(6, 4 // groups, 3, 2)
    for x in (_t(2, 4, 7, 8), _t(1, 4, 3, 2)):
        assert_agrees(
            lambda x, w, b: convolve(x, w, b, stride=2, padding=1, groups=groups),
            [x, weight, _t(6)],
            [LAYOUTS_2D[layout], *replicated],
            mesh_shape=(2, 2),
        )


def test_partial_sums_whose_rows_are_sharded_stay_partial_sums() -> None:
    assert_agrees(
        lambda x, w, b: F.conv2d(x, w, b, padding=1),
        [_t(1, 2, 5, 4), _t(3, 2, 3, 3), _t(3)],
        [[P, Shard(2)], [R, R], [R, R]],
        mesh_shape=(4, 2),
    )


@pytest.mark.parametrize("dim", [2, 3, 4])
def test_every_spatial_dim_of_three_may_be_sharded(dim: int) -> None:
    assert_agrees(
        lambda x, w: F.conv3d(x, w, stride=2, padding=1, dilation=(1, 2, 1)),
        [_t(1, 2, 6, 6, 5), _t(2, 2, 3, 2, 3)],
        [[Shard(dim)], [R]],
    )


def test_of_images_the_halo_is_cheaper_than_any_other_layout() -> None:
    with fake_world(RANKS, rank=1):
        mesh = init_device_mesh("cpu", (RANKS,))
        x = laid_out(_t(2, 8, 256, 256), mesh, [Shard(2)])
        weight = laid_out(_t(8, 8, 3, 3), mesh, [R])
        halo = 2 * 2 * 8 * 256 * ITEMSIZE
        with Sent() as sent, Collectives() as issued:
            y = F.conv2d(x, weight, padding=1)
            y.sum().backward()
        # The gradient of the weight stays a partial sum, because no operator reads its value.
        assert sent.num_bytes == [halo, 2 * halo]
        assert issued == {"all_to_all_single": 2}
        assert [x.grad.placements, weight.grad.placements] == [(Shard(2),), (P,)]  # pyright: ignore


def test_of_a_window_over_everything_no_halo_is_fetched() -> None:
    with fake_world(RANKS):
        mesh = init_device_mesh("cpu", (RANKS,))
        x = laid_out(_t(8, 8, 256), mesh, [Shard(2)])
        with Collectives() as issued:
            y = F.conv1d(x, laid_out(_t(8, 8, 255), mesh, [R]), padding=127)
        assert y.placements == (Shard(0),)  # pyright: ignore
        assert issued == {"all_to_all_single": 1}


def test_a_window_over_everything_still_agrees() -> None:
    for kernel in (9, 17):
        assert_agrees(
            lambda x, w: F.conv1d(x, w, padding=8),
            [_t(1, 2, 9), _t(2, 2, kernel)],
            [[Shard(2)], [R]],
        )


def test_gradients_of_gradients_pass_a_convolution_whose_rows_are_sharded() -> None:
    def second(x: Any, weight: Any) -> Any:
        y = F.conv1d(x, weight, stride=2, padding=1).pow(3)
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return gradient.pow(2)

    assert_agrees(second, [_t(1, 2, 9), _t(2, 2, 3)], [[Shard(2)], [R]])
