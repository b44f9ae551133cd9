"""Shard arithmetic equals torch.chunk, and the shards of all coordinates make up the tensor."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dtensor_core import layout
from dtensor_core.errors import LayoutError
from dtensor_core.layout import AxisSharding, Extent
from dtensor_core.placement import Partial, Replicate, Shard, _StridedShard

SIZES = st.sampled_from([0, 1, 2, 3, 5, 7, 8, 12, 13, 97])
RANKS = st.integers(1, 6)


@given(SIZES, RANKS)
def test_extents_are_those_of_torch_chunk(size: int, ranks: int) -> None:
    full = torch.arange(size)
    pieces = [*full.chunk(ranks), *[full[size:]] * ranks][:ranks]
    for coord, piece in enumerate(pieces):
        extent = layout.local_extent(size, ranks, coord)
        held = full[extent.offset : extent.offset + extent.size]
        assert held.tolist() == piece.tolist()


def test_an_empty_shard_begins_at_the_end_of_the_dimension() -> None:
    assert layout.local_extent(5, 4, 2) == Extent(4, 1)
    assert layout.local_extent(5, 4, 3) == Extent(5, 0)


def test_a_coordinate_outside_of_the_axis_is_refused() -> None:
    with pytest.raises(LayoutError, match="coordinate 4 is outside of an axis of 4 ranks"):
        layout.local_extent(5, 4, 4)


@given(SIZES, st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=3))
def test_the_pieces_of_all_coordinates_cover_the_dimension_once(
    size: int, axes: list[tuple[int, int]]
) -> None:
    seen: list[int] = []
    for coords in itertools.product(*(range(ranks) for ranks, _ in axes)):
        shardings = [
            AxisSharding(n, coord, factor) for (n, factor), coord in zip(axes, coords, strict=True)
        ]
        for extent in layout.held_extents(size, shardings):
            seen.extend(range(extent.offset, extent.offset + extent.size))
        assert layout.held_size(size, shardings) == sum(
            e.size for e in layout.held_extents(size, shardings)
        )
    assert sorted(seen) == list(range(size))


def test_axes_that_shard_one_dimension_nest_from_the_first_to_the_last() -> None:
    assert layout.held_extents(8, [AxisSharding(2, 1), AxisSharding(2, 0)]) == (Extent(4, 2),)
    assert layout.held_extents(8, [AxisSharding(2, 0), AxisSharding(2, 1)]) == (Extent(2, 2),)


def test_a_strided_shard_takes_its_share_of_every_block() -> None:
    assert layout.held_extents(8, [AxisSharding(2, 0, 2)]) == (Extent(0, 2), Extent(4, 2))
    assert layout.held_extents(8, [AxisSharding(2, 1, 2)]) == (Extent(2, 2), Extent(6, 2))


def test_a_strided_shard_and_the_shard_that_it_leaves_room_for_are_a_plain_nesting() -> None:
    """Axis 1 is outermost: axis 0 holds parts of both blocks, which axis 1 separates."""
    assert layout.held_extents(8, [AxisSharding(2, 1, 2), AxisSharding(2, 0)]) == (Extent(2, 2),)
    assert layout.held_extents(8, [AxisSharding(2, 1, 2), AxisSharding(2, 1)]) == (Extent(6, 2),)


def test_local_shapes_follow_the_placements() -> None:
    placements = (Shard(0), Partial(), Shard(0), Shard(2))
    assert layout.local_shape((8, 3, 5), placements, (2, 2, 2, 4), (0, 1, 1, 3)) == (2, 3, 0)
    assert layout.local_shape((8, 3), (Replicate(),), (4,), (2,)) == (8, 3)


def test_a_rank_outside_of_the_mesh_holds_nothing() -> None:
    assert layout.local_shape((8, 3), (Replicate(),), (4,), None) == (0,)
    assert layout.local_shape((), (Replicate(),), (4,), None) == ()


@given(st.lists(SIZES, min_size=2, max_size=2), RANKS, RANKS)
def test_even_means_that_all_local_shapes_are_equal(shape: list[int], first: int, second: int):
    placements = (Shard(1), _StridedShard(1, split_factor=2))
    if layout.is_even(shape, placements, (first, second)):
        shapes = {
            layout.local_shape(shape, placements, (first, second), coords)
            for coords in itertools.product(range(first), range(second))
        }
        assert len(shapes) == 1


@given(st.permutations(range(3)), st.lists(st.integers(1, 4), min_size=3, max_size=3))
def test_a_stride_keeps_the_order_of_dimensions_in_memory(order: list[int], shape: list[int]):
    like = torch.empty(5, 6, 7).permute(order).contiguous().permute(order).stride()
    stride = layout.stride_like(shape, like)
    tensor = torch.empty_strided(shape, stride)
    assert tensor.untyped_storage().nbytes() == tensor.numel() * 4
    ranked = sorted(range(3), key=lambda dim: like[dim])
    assert [stride[dim] for dim in ranked] == sorted(stride)


def test_an_expanded_dimension_stays_expanded() -> None:
    assert layout.stride_like((4, 6), (0, 1)) == (0, 1)
    assert layout.stride_like((4, 6), (0, 0)) == (0, 0)
