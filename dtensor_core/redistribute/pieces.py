"""Cutting a local tensor into the pieces of an axis, and joining them again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from dtensor_core import layout
from dtensor_core.placement import Placement, sharded_dim, split_factor

Pieces = tuple[tuple[layout.Extent, ...], ...]


@lru_cache(maxsize=16384)
def pieces_of(size: int, num_shards: int, factor: int = 1) -> Pieces:
    """What each coordinate holds of a dimension, as extents in the order of local storage."""
    return tuple(
        layout.held_extents(size, (layout.Cut(num_shards, coord, factor),))
        for coord in range(num_shards)
    )


@lru_cache(maxsize=16384)
def piece_sizes(size: int, num_shards: int, factor: int = 1) -> tuple[int, ...]:
    """The size of every coordinate's piece of a dimension; the first one is the longest."""
    pieces = pieces_of(size, num_shards, factor)
    return tuple(sum(extent.size for extent in held) for held in pieces)


def split(tensor: torch.Tensor, placement: Placement, ranks: int) -> list[torch.Tensor]:
    """The piece of every coordinate, along the dimension that `placement` cuts."""
    dim = sharded_dim(placement)
    assert dim is not None
    held = pieces_of(tensor.shape[dim], ranks, split_factor(placement))
    return [part_of(tensor, dim, extents) for extents in held]


def part_of(tensor: torch.Tensor, dim: int, extents: Sequence[layout.Extent]) -> torch.Tensor:
    """The extents of one dimension, joined; a view where there is only one."""
    parts = [tensor.narrow(dim, extent.offset, extent.size) for extent in extents]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def join(pieces: Sequence[torch.Tensor], placement: Placement, size: int) -> torch.Tensor:
    """The whole, from the pieces of every coordinate; pieces may be padded at their end."""
    dim = sharded_dim(placement)
    assert dim is not None
    located: list[tuple[int, torch.Tensor]] = []
    held = pieces_of(size, len(pieces), split_factor(placement))
    for piece, extents in zip(pieces, held, strict=True):
        start = 0
        for extent in extents:
            if extent.size:
                located.append((extent.offset, piece.narrow(dim, start, extent.size)))
            start += extent.size
    if not located:
        return pieces[0].narrow(dim, 0, 0)
    return torch.cat([part for _, part in sorted(located, key=lambda entry: entry[0])], dim)


def pad(piece: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """The piece, contiguous, with zeros behind it up to `size`."""
    missing = size - piece.shape[dim]
    if missing == 0:
        return piece.contiguous()
    shape = list(piece.shape)
    shape[dim] = missing
    return torch.cat([piece, piece.new_zeros(shape)], dim)
