"""Overlap of two shards, as parts of their local tensors: slicing, sending and joining.

Along every dimension, a shard holds some extents of the global tensor in ascending order. Two
shards therefore share, along every dimension, a few runs that both hold in the same order. A `Part`
locates them in a local tensor. Used by `steps`, made by `execute`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dtensor_core.layout import Extent

# Locations within a dimension: (start, size), ascending.
Runs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a local tensor: its shape, and the dimensions along which it is not all of it."""

    shape: tuple[int, ...]
    narrowed: tuple[tuple[int, Runs], ...]

    @property
    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


def common(held: Sequence[Extent], wanted: Sequence[Extent]) -> Runs:
    """Return the runs of the wanted extents within the held extents, as local offsets."""
    runs: list[tuple[int, int]] = []
    start = 0
    for piece in held:
        for want in wanted:
            low = max(piece.offset, want.offset)
            size = min(piece.offset + piece.size, want.offset + want.size) - low
            if size > 0:
                _append(runs, start + low - piece.offset, size)
        start += piece.size
    return tuple(runs)


def _append(runs: list[tuple[int, int]], start: int, size: int) -> None:
    """Append a run, merged with the previous run if they touch."""
    if runs and runs[-1][0] + runs[-1][1] == start:
        start, size = runs[-1][0], runs.pop()[1] + size
    runs.append((start, size))


def part(shape: Sequence[int], runs: Sequence[tuple[int, Runs]]) -> Part:
    """Return the part of a tensor of local `shape` given by `runs` of some dimensions."""
    sizes = list(shape)
    for dim, here in runs:
        sizes[dim] = sum(size for _, size in here)
    narrowed = tuple((dim, here) for dim, here in runs if here != ((0, shape[dim]),))
    return Part(tuple(sizes), narrowed)


def take(tensor: torch.Tensor, wanted: Part) -> torch.Tensor:
    """Return a part of a tensor; a view if it is contiguous along each dimension."""
    for dim, runs in wanted.narrowed:
        pieces = [tensor.narrow(dim, start, size) for start, size in runs or ((0, 0),)]
        tensor = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim)
    return tensor


def join(blocks: Sequence[torch.Tensor], parts: Sequence[Part], shape: Sequence[int]):
    """Assemble a tensor of `shape` from blocks, which are its parts and together cover it."""
    dims = {dim for each in parts for dim, _ in each.narrowed}
    if len(dims) > 1:
        return _filled(blocks, parts, shape)
    located: list[tuple[int, torch.Tensor]] = []
    dim = dims.pop() if dims else 0
    for block, each in zip(blocks, parts, strict=True):
        if not each.narrowed and (each.numel or len(parts) == 1):
            return block  # all of it
        start = 0
        for place, size in each.narrowed[0][1] if each.narrowed else ():
            full = size == block.shape[dim]
            located.append((place, block if full else block.narrow(dim, start, size)))
            start += size
    if not located:
        return blocks[0].new_empty(shape)
    located.sort(key=_place)
    return torch.cat([piece for _, piece in located], dim)


def _place(entry: tuple[int, torch.Tensor]) -> int:
    return entry[0]


def _filled(blocks: Sequence[torch.Tensor], parts: Sequence[Part], shape: Sequence[int]):
    """Assemble blocks that differ in several dimensions by copying each to its place."""
    out = blocks[0].new_empty(shape)
    for block, each in zip(blocks, parts, strict=True):
        runs = [here for _, here in each.narrowed]
        for chosen in itertools.product(*runs):
            target, source = out, block
            for (dim, here), run in zip(each.narrowed, chosen, strict=True):
                start = sum(size for place, size in here if place < run[0])
                target = target.narrow(dim, *run)
                source = source.narrow(dim, start, run[1])
            target.copy_(source)
    return out


def pad(piece: torch.Tensor, numel: int) -> torch.Tensor:
    """Flatten a piece and pad it with zeros to `numel` elements."""
    flat = piece.reshape(-1)
    missing = numel - flat.shape[0]
    return torch.cat([flat, flat.new_zeros(missing)]) if missing else flat
