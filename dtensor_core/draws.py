"""Drawing one rank's part of a random tensor: the numbers that one device would give the whole.

Law: a rank draws for the whole tensor, in the memory order of the whole one, and keeps what it
holds. So replicas agree, shards differ, every layout gives the same full tensor, and the
generators of all ranks, equal before, are equal after. Nothing is communicated. A large tensor is
drawn block by block, so that memory stays bounded, where a sampler's numbers don't depend on how
many are asked for at once: its `grain` is what blocks must be multiples of, None where it has
none. Called by the rules of random operators and by the factories.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import torch

from dtensor_core.layout import Extent
from dtensor_core.spec import Spec

# Elements drawn at a time where the whole is larger: 4 MiB of float32.
BLOCK = 1 << 20
Fill = Callable[[torch.Tensor], object]


def draw(fill: Fill, local: torch.Tensor, spec: Spec, grain: int | None = None) -> torch.Tensor:
    """`local`, filled with this rank's part of what `fill` writes to a tensor laid out as `spec`.

    Partial axes are taken to be whole ones.
    """
    shape, stride = tuple(spec.shape), spec.stride
    if spec.local_shape == shape and local.stride() == stride:
        fill(local)
    elif grain is None or math.prod(shape) <= BLOCK or not _is_sequential(local):
        whole = local.new_empty_strided(shape, stride)
        fill(whole)
        local.copy_(spec.part_of(whole))
    else:
        _draw_in_blocks(fill, local, spec, grain)
    return local


def _is_sequential(local: torch.Tensor) -> bool:
    """True for a stored CPU tensor: one number after the other from one generator."""
    return type(local) is torch.Tensor and local.device.type == "cpu"


def _draw_in_blocks(fill: Fill, local: torch.Tensor, spec: Spec, grain: int) -> None:
    """Walk through the whole in memory order, holding one block of it at a time."""
    order = sorted(range(spec.ndim), key=lambda dim: -spec.stride[dim])
    sizes = [spec.shape[dim] for dim in order]
    held = [spec.held(dim) for dim in order]
    stream = _Stream(fill, local, spec, grain)

    def walk(dim: int, target: torch.Tensor) -> None:
        row = math.prod(sizes[dim + 1 :])
        step = max(1, BLOCK // row)
        for start in range(0, sizes[dim], step):
            stop = min(start + step, sizes[dim])
            mine = list(_overlaps(held[dim], start, stop))
            if row > BLOCK and mine:
                walk(dim + 1, target.select(0, mine[0][2]))
            elif not mine:
                stream.skip((stop - start) * row)
            else:
                rows = stream.take((stop - start) * row).view(stop - start, *sizes[dim + 1 :])
                for inner in range(dim + 1, len(sizes)):
                    rows = _keep(rows, inner - dim, held[inner])
                for low, high, place in mine:
                    kept = rows.narrow(0, low - start, high - low)
                    target.narrow(0, place, high - low).copy_(kept)

    walk(0, local.permute(order))


def _overlaps(held: Sequence[Extent], start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """What is held of [start, stop): global start and end, and the local place of each piece."""
    place = 0
    for piece in held:
        low, high = max(start, piece.offset), min(stop, piece.offset + piece.size)
        if low < high:
            yield low, high, place + low - piece.offset
        place += piece.size


def _keep(rows: torch.Tensor, dim: int, held: Sequence[Extent]) -> torch.Tensor:
    """What is held of a dimension; a view where it is in one piece."""
    pieces = [rows.narrow(dim, piece.offset, piece.size) for piece in held]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim)


class _Stream:
    """The numbers of the whole, one after the other, drawn a block at a time."""

    def __init__(self, fill: Fill, like: torch.Tensor, spec: Spec, grain: int) -> None:
        self._fill, self._like, self._grain = fill, like, grain
        self._left = math.prod(spec.shape)
        # A sampler that has a grain takes another path, one number at a time, where the whole is
        # not contiguous; so does a block that is not.
        whole = torch.empty_strided(spec.shape, spec.stride, device="meta")
        self._spread = 1 if grain == 1 or whole.is_contiguous() else 2
        self._block = like.new_empty(0)

    def take(self, count: int) -> torch.Tensor:
        """The next `count` numbers, [count]."""
        parts = list(self._parts(count))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def skip(self, count: int) -> None:
        """Leave the next `count` numbers out."""
        for _ in self._parts(count):
            pass

    def _parts(self, count: int) -> Iterator[torch.Tensor]:
        while count:
            if not self._block.numel():
                self._block = self._next()
            part = self._block[:count]
            self._block = self._block[part.numel() :]
            count -= part.numel()
            yield part

    def _next(self) -> torch.Tensor:
        size = max(BLOCK // self._grain, 1) * self._grain
        if self._left - size < self._grain:
            size = self._left
        self._left -= size
        block = self._like.new_empty(size * self._spread)[:: self._spread]
        self._fill(block)
        return block


def embed(part: torch.Tensor, spec: Spec, whole: torch.Tensor) -> torch.Tensor:
    """`whole`, with this rank's part written to where it belongs."""
    held = [spec.held(dim) for dim in range(spec.ndim)]
    for pieces in itertools.product(*(enumerate(extents) for extents in held)):
        target, source = whole, part
        for dim, (number, piece) in enumerate(pieces):
            place = sum(before.size for before in held[dim][:number])
            target = target.narrow(dim, piece.offset, piece.size)
            source = source.narrow(dim, place, piece.size)
        target.copy_(source)
    return whole
