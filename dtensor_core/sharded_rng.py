"""Drawing a rank's part of a random tensor, with the numbers that a single device would draw.

Invariant: a rank draws the numbers of the full tensor, in memory order, and keeps its own.
Therefore replicas agree, shards differ, every layout gives the same full tensor, and generators
that are equal on all ranks stay equal. Nothing is communicated.

A large tensor is drawn block by block to bound memory, if the sampler's numbers don't depend on how
many are drawn at once:

    CPU     numbers are sequential: all blocks are drawn, one at a time. Blocks are multiples of the
            sampler's grain; None if it has none, as where MKL draws all at once
    CUDA    Philox is counter-based: a block is drawn from its position in the count, so blocks
            that hold no element of the rank are skipped. Blocks are multiples of the kernel's grid
    others  drawn at once

Called by the rules of random operators and by the factories.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch

from dtensor_core.layout import Extent
from dtensor_core.spec import Spec

# Elements drawn at a time for larger tensors: 4 MiB of float32.
BLOCK = 1 << 20
# Source of these: ATen/native/cuda/DistributionTemplates.h.
_THREADS = 256  # per block of the grid
_COUNTS = 4  # a call of curand advances the count by this, and gives 4 or 2 numbers
_INDEXED = 1 << 31  # bytes; torch draws a larger tensor as several

Fill = Callable[[torch.Tensor], object]


def draw(
    fill: Fill,
    local: torch.Tensor,
    spec: Spec,
    grain: int | None = None,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Fill `local` with this rank's part of what `fill` draws for the full tensor of `spec`.

    Partial axes are treated as replicated.

    Args:
        fill: Draws the numbers of a tensor, in place.
        local: The local tensor to fill.
        spec: The layout of the tensor.
        grain: Sizes that are multiples of it can be drawn in sequence; None if all must be drawn at
            once.
        generator: The generator that `fill` draws from; the device's default generator if None.

    Returns:
        `local`.
    """
    # Numbers are drawn in memory order, so a replica with other strides would place them otherwise.
    if spec.local_shape == tuple(spec.shape) and local.stride() == spec.stride:
        fill(local)
        return local
    stream = _stream(fill, local, spec, grain, generator)
    if stream is None:
        full = local.new_empty_strided(spec.shape, spec.stride)
        fill(full)
        local.copy_(spec.part_of(full))
    else:
        _keep_of(stream, local, spec)
        stream.end()
    return local


@contextmanager
def apart(device_type: str, place: int) -> Iterator[None]:
    """Give each `place` different numbers from torch's default generators while the body runs.

    All ranks must enter together. The numbers follow from the random state on entry, which
    advances by one number of the CPU's generator and is equal on all ranks again afterwards.
    """
    # Drawn before the fork, so that the state advances for the next use.
    seed = int(torch.randint(1 << 62, ()).item()) ^ place
    module = None if device_type == "cpu" else torch.get_device_module(device_type)
    devices = [] if module is None else [module.current_device()]
    with torch.random.fork_rng(devices, device_type="cuda" if module is None else device_type):
        # Not torch.manual_seed, which would also seed devices that are not forked here.
        torch.default_generator.manual_seed(seed)
        if module is not None:
            module.manual_seed(seed)
        yield


def embed(part: torch.Tensor, spec: Spec, full: torch.Tensor) -> torch.Tensor:
    """Write this rank's part to its position in `full`, and return `full`."""
    held = [spec.extents(dim) for dim in range(spec.ndim)]
    for pieces in itertools.product(*(enumerate(extents) for extents in held)):
        target, source = full, part
        for dim, (number, piece) in enumerate(pieces):
            place = sum(before.size for before in held[dim][:number])
            target = target.narrow(dim, piece.offset, piece.size)
            source = source.narrow(dim, place, piece.size)
        target.copy_(source)
    return full


class Stream(Protocol):
    """The random numbers of a full tensor in memory order, to be taken or skipped."""

    def take(self, count: int) -> torch.Tensor:
        """Return the next `count` numbers, [count]; valid until the next call."""
        ...

    def skip(self, count: int) -> None:
        """Skip the next `count` numbers."""

    def end(self) -> None:
        """Leave the generator in the state after a single draw of the full tensor."""


def _stream(
    fill: Fill,
    local: torch.Tensor,
    spec: Spec,
    grain: int | None,
    generator: torch.Generator | None,
) -> Stream | None:
    """Return a stream that draws in blocks, or None if all is drawn at once."""
    total = math.prod(spec.shape)
    if total <= BLOCK or type(local) is not torch.Tensor:  # a tensor without data draws nothing
        return None
    if local.device.type == "cpu" and grain is not None:
        # A sampler with a grain takes another path, one number at a time, if the full tensor is not
        # contiguous. Blocks that are not contiguous take the same path.
        full = torch.empty_strided(spec.shape, spec.stride, device="meta")
        spread = 1 if grain == 1 or full.is_contiguous() else 2
        return OneAfterTheOther(fill, local, total, grain, spread)
    if local.device.type == "cuda" and total * local.element_size() < _INDEXED:
        size = _grid(local.device) * _COUNTS
        size *= max(1, BLOCK // size)
        # torch refuses to set the offset of a generator while a CUDA graph is captured.
        if total > size and not torch.cuda.is_current_stream_capturing():
            default = torch.cuda.default_generators[local.device.index]
            return Counted(fill, local, total, size, generator or default)
    return None


def _grid(device: torch.device) -> int:
    """Return the number of threads that draw for a large tensor."""
    gpu = torch.cuda.get_device_properties(device)
    return gpu.multi_processor_count * (gpu.max_threads_per_multi_processor // _THREADS) * _THREADS


class OneAfterTheOther:
    """A sequential stream: skipped numbers have to be drawn too.

    Blocks are `spread` elements apart in memory.
    """

    def __init__(self, fill: Fill, like: torch.Tensor, total: int, grain: int, spread: int) -> None:
        self._fill, self._like, self._grain, self._spread = fill, like, grain, spread
        self._left = total
        self._block = like.new_empty(0)

    def take(self, count: int) -> torch.Tensor:
        """See `Stream`."""
        parts = list(self._parts(count))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def skip(self, count: int) -> None:
        """See `Stream`."""
        for _ in self._parts(count):
            pass

    def end(self) -> None:
        """See `Stream`."""
        assert self._left == 0

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
        # A rest shorter than the grain takes another path of the sampler, so it joins here.
        if self._left - size < self._grain:
            size = self._left
        self._left -= size
        block = self._like.new_empty(size * self._spread)[:: self._spread]
        self._fill(block)
        return block


class Counted:
    """A counter-based stream: any block can be drawn alone, by setting the generator's offset.

    Element e of the full tensor is made by thread e mod T of a grid of T threads, in its call
    number e // (T * u), where a call gives u numbers. Blocks of `size`, a multiple of 4 T,
    therefore begin at equal steps of the offset. The step is measured with the first block.
    """

    def __init__(
        self, fill: Fill, like: torch.Tensor, total: int, size: int, generator: torch.Generator
    ) -> None:
        self._fill, self._like, self._generator = fill, like, generator
        self._total, self._size, self._at = total, size, 0
        self._start, self._step = generator.get_offset(), 0
        self._block = self._load(0)
        self._step = generator.get_offset() - self._start

    def take(self, count: int) -> torch.Tensor:
        """See `Stream`."""
        parts: list[torch.Tensor] = []
        while count:
            number, place = divmod(self._at, self._size)
            if number != self._number:
                self._block = self._load(number)
            parts.append(self._block[place : place + count])
            self._at += parts[-1].numel()
            count -= parts[-1].numel()
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def skip(self, count: int) -> None:
        """See `Stream`."""
        self._at += count

    def end(self) -> None:
        """See `Stream`."""
        blocks, rest = divmod(self._total, self._size)
        calls = -(-rest * self._step // (self._size * _COUNTS))
        self._generator.set_offset(self._start + blocks * self._step + calls * _COUNTS)

    def _load(self, number: int) -> torch.Tensor:
        self._number = number
        self._generator.set_offset(self._start + number * self._step)
        block = self._like.new_empty(min(self._size, self._total - number * self._size))
        self._fill(block)
        return block


def _keep_of(stream: Stream, local: torch.Tensor, spec: Spec) -> None:
    """Traverse the full tensor in memory order and copy the held parts."""
    order = sorted(range(spec.ndim), key=lambda dim: -spec.stride[dim])
    sizes = [spec.shape[dim] for dim in order]
    held = [spec.extents(dim) for dim in order]
    _keep_from(stream, local.permute(order), sizes, held)


def _keep_from(
    stream: Stream, target: torch.Tensor, sizes: Sequence[int], held: Sequence[Sequence[Extent]]
) -> None:
    """Traverse a tensor of some sizes, and copy the parts held of each dimension to `target`."""
    row = math.prod(sizes[1:])
    step = max(1, BLOCK // row)
    for start in range(0, sizes[0], step):
        stop = min(start + step, sizes[0])
        mine = list(_overlaps(held[0], start, stop))
        if not mine:
            stream.skip((stop - start) * row)
        elif row > BLOCK:
            _keep_from(stream, target.select(0, mine[0][2]), sizes[1:], held[1:])
        else:
            rows = stream.take((stop - start) * row).view(stop - start, *sizes[1:])
            for inner in range(1, len(sizes)):
                rows = _keep(rows, inner, held[inner])
            for low, high, place in mine:
                kept = rows.narrow(0, low - start, high - low)
                target.narrow(0, place, high - low).copy_(kept)


def _overlaps(held: Sequence[Extent], start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield start, end and local position of each held part of [start, stop)."""
    place = 0
    for piece in held:
        low, high = max(start, piece.offset), min(stop, piece.offset + piece.size)
        if low < high:
            yield low, high, place + low - piece.offset
        place += piece.size


def _keep(rows: torch.Tensor, dim: int, held: Sequence[Extent]) -> torch.Tensor:
    """Select the held part of a dimension; a view if it is in a single piece."""
    pieces = [rows.narrow(dim, piece.offset, piece.size) for piece in held]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim)
