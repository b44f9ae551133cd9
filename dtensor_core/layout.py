"""Shard arithmetic: the part of a dimension that a coordinate holds. Integers in, integers out.

Invariant (torch.chunk): a dimension of size s over n ranks is split into chunks of ceil(s / n), so
the last chunks may be short or empty. Several axes may shard the same dimension. They act from the
first mesh axis to the last, each on the previous result. A strided shard takes its chunk of each of
`split_factor` blocks, where the blocks themselves are `torch.chunk` pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dtensor_core.errors import LayoutError
from dtensor_core.placement import Placement


@dataclass(frozen=True, slots=True, order=True)
class Extent:
    """A contiguous piece of a dimension: `size` elements from `offset` on."""

    offset: int
    size: int


def chunk_size(global_size: int, num_shards: int) -> int:
    """Return the length of a full chunk: ceil(global_size / num_shards)."""
    return -(-global_size // num_shards)


def local_extent(global_size: int, num_shards: int, coord: int) -> Extent:
    """Return the slice of a dimension that a coordinate holds.

    Chunks are ceil(global_size / num_shards) long, so the last may be short or empty:
    local_extent(5, 4, 2) == Extent(offset=4, size=1), and coord 3 holds nothing.

    Raises:
        LayoutError: `coord` is outside of [0, num_shards).

    Source: torch.chunk.
    """
    if not 0 <= coord < num_shards:
        raise LayoutError(f"coordinate {coord} is outside of an axis of {num_shards} ranks")
    chunk = chunk_size(global_size, num_shards)
    offset = min(chunk * coord, global_size)
    return Extent(offset, min(chunk, global_size - offset))


@dataclass(frozen=True, slots=True)
class AxisSharding:
    """Sharding of a dimension by an axis of `num_shards` ranks, seen from the rank at `coord`."""

    num_shards: int
    coord: int
    split_factor: int = 1


def shardings_of(
    placements: Sequence[Placement], mesh_shape: Sequence[int], coords: Sequence[int], dim: int
) -> tuple[AxisSharding, ...]:
    """Return the shardings of a dimension by the placements, first mesh axis first."""
    return tuple(
        AxisSharding(mesh_shape[axis], coords[axis], placement.num_blocks)
        for axis, placement in enumerate(placements)
        if placement.sharded_dim == dim
    )


def held_extents(global_size: int, shardings: Sequence[AxisSharding]) -> tuple[Extent, ...]:
    """Return the pieces of a dimension that a rank holds, in the order of local storage.

    Without a strided shard this is a single piece, possibly empty:
    held_extents(8, [AxisSharding(2, 1), AxisSharding(2, 0)]) == (Extent(4, 2),).
    """
    offset, size = 0, global_size
    for number, sharding in enumerate(shardings):
        if sharding.split_factor != 1:
            return _strided_extents((Extent(offset, size),), shardings[number:])
        piece = local_extent(size, sharding.num_shards, sharding.coord)
        offset, size = offset + piece.offset, piece.size
    return (Extent(offset, size),)


def _strided_extents(
    held: tuple[Extent, ...], shardings: Sequence[AxisSharding]
) -> tuple[Extent, ...]:
    for sharding in shardings:
        total = sum(piece.size for piece in held)
        block = chunk_size(total, sharding.split_factor)
        wanted: list[Extent] = []
        for number in range(sharding.split_factor):
            start = min(number * block, total)
            size = min(block, total - start)
            piece = local_extent(size, sharding.num_shards, sharding.coord)
            wanted.append(Extent(start + piece.offset, piece.size))
        held = _select(held, wanted)
    return held


def _select(held: Sequence[Extent], wanted: Sequence[Extent]) -> tuple[Extent, ...]:
    """Convert extents `wanted` of the concatenation of `held` to global extents."""
    result: list[Extent] = []
    for want in wanted:
        start = 0
        for piece in held:
            low = max(want.offset, start)
            high = min(want.offset + want.size, start + piece.size)
            if high > low:
                _append(result, Extent(piece.offset + low - start, high - low))
            start += piece.size
    return tuple(result) or (Extent(sum(piece.offset + piece.size for piece in held[-1:]), 0),)


def _append(pieces: list[Extent], piece: Extent) -> None:
    """Append a piece, merged with the last if they touch."""
    if pieces and pieces[-1].offset + pieces[-1].size == piece.offset:
        pieces[-1] = Extent(pieces[-1].offset, pieces[-1].size + piece.size)
    else:
        pieces.append(piece)


def united(extents: Iterable[Extent]) -> list[Extent]:
    """Return the non-empty extents in ascending order, merged where they touch or overlap."""
    joined: list[Extent] = []
    for extent in sorted(extent for extent in extents if extent.size):
        last = joined[-1] if joined else extent
        if joined and extent.offset <= last.offset + last.size:
            end = max(last.offset + last.size, extent.offset + extent.size)
            joined[-1] = Extent(last.offset, end - last.offset)
        else:
            joined.append(extent)
    return joined


def shard_size(size: int, num_shards: int, coord: int, num_blocks: int = 1) -> int:
    """Return the number of elements of a dimension that a coordinate holds.

    They are its chunk of each of `num_blocks` equal blocks.
    """
    block = chunk_size(size, num_blocks) if num_blocks != 1 else size
    chunk = -(-block // num_shards)
    held = min(chunk, block - min(chunk * coord, block))
    if block == size:
        return held
    blocks, rest = divmod(size, block)
    return blocks * held + (shard_size(rest, num_shards, coord) if rest else 0)


def held_size(global_size: int, shardings: Sequence[AxisSharding]) -> int:
    """Return the number of elements of a dimension that are held after `shardings`."""
    size = global_size
    for sharding in shardings:
        size = shard_size(size, sharding.num_shards, sharding.coord, sharding.split_factor)
    return size


def local_shape(
    shape: Sequence[int],
    placements: Sequence[Placement],
    mesh_shape: Sequence[int],
    coords: Sequence[int] | None,
) -> tuple[int, ...]:
    """Return the local shape at `coords`.

    Outside of the mesh (`coords` is None) it is the shape of an empty tensor, or of a scalar.
    """
    if coords is None:
        return (0,) if shape else ()
    local = list(shape)
    for placement, ranks, coord in zip(placements, mesh_shape, coords, strict=True):
        dim = placement.sharded_dim
        if dim is not None:
            local[dim] = shard_size(local[dim], ranks, coord, placement.num_blocks)
    return tuple(local)


def is_even(
    shape: Sequence[int], placements: Sequence[Placement], mesh_shape: Sequence[int]
) -> bool:
    """True if every coordinate of the mesh holds a shard of the same shape."""
    divisors = [1] * len(shape)
    for axis, placement in enumerate(placements):
        dim = placement.sharded_dim
        if dim is not None:
            divisors[dim] *= mesh_shape[axis] * placement.num_blocks
    return all(size % divisor == 0 for size, divisor in zip(shape, divisors, strict=True))


def contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the stride of a contiguous tensor, in elements; like torch's also for sizes of 0."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        if size > 1:
            step *= size
    strides.reverse()
    return tuple(strides)


def stride_like(shape: Sequence[int], like: Sequence[int]) -> tuple[int, ...]:
    """Return the stride of a dense tensor with the memory order of dimensions of stride `like`.

    An expanded dimension (stride 0) stays expanded: stride_like((4, 6), (0, 1)) == (0, 1).
    """
    strides = [0] * len(shape)
    step = 1
    for dim in sorted(range(len(shape)), key=lambda dim: (like[dim], shape[dim])):
        if like[dim] == 0 and shape[dim] > 1:
            continue
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)
