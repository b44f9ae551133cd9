"""Pooling of local shards, with the rows of neighbours that their windows read.

Indices refer to the full tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from dtensor_core.layout import AxisSharding, Extent, local_extent
from dtensor_core.operators.kernels.local_operator import Local
from dtensor_core.operators.kernels.windows import WindowPart, fitted
from dtensor_core.redistribute.halo_exchange import Rows


@dataclass(frozen=True)
class PooledWindows:
    """The windows of each pooled spatial dim; `first` is the first spatial dim.

    `sizes` are the sizes of the spatial dims.
    """

    windows: Mapping[int, Any]
    first: int
    sizes: Sequence[int]
    ceil: bool = False

    def count(self, dim: int, rows: int) -> int:
        """Return the number of windows that an operator makes on this many rows."""
        windows = self.windows[dim]
        behind = rows + windows.pad
        room = behind + windows.pad - windows.reach + (windows.step - 1 if self.ceil else 0)
        count = room // windows.step + 1
        # As in torch, `ceil_mode` drops a window that starts beyond the rows and leading padding.
        return count - 1 if self.ceil and (count - 1) * windows.step >= behind else count


def pooled(pool: PooledWindows, op: Local, rows: Rows, shards: Mapping[int, AxisSharding]) -> Local:
    """Make the pool, on the rows that its windows read."""
    parts = {
        dim: WindowPart.within(pool.windows[dim], own)
        for dim, own in _owns(pool, shards, "count").items()
    }

    def local(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        (x,) = rows([x])
        for dim, part in parts.items():
            x = fitted(x, dim, part.needs, part.block)
        made = op(x, *args, **kwargs)
        if 0 in x.shape:
            return made
        results = [made] if isinstance(made, torch.Tensor) else list(made)
        for dim, part in parts.items():
            results = [fitted(each, dim, part.made, part.own) for each in results]
        if isinstance(made, torch.Tensor):
            return results[0]
        starts = {dim: part.block.offset for dim, part in parts.items()}
        results[1] = _moved(results[1], pool, x.shape[pool.first :], pool.sizes, _behind(starts))
        return tuple(results)

    return local


# From the position of a row in one tensor to that in another.
_PositionMap = Callable[[torch.Tensor], torch.Tensor]


def _moved(
    indices: torch.Tensor,
    pool: PooledWindows,
    before: Sequence[int],
    after: Sequence[int],
    moves: Mapping[int, _PositionMap],
) -> torch.Tensor:
    """Convert flat indices between tensors of other spatial sizes and row positions."""
    if list(before) == list(after) and not moves:
        return indices
    made, stride = torch.zeros_like(indices), 1
    for number in reversed(range(len(before))):
        place = indices % before[number]
        move = moves.get(pool.first + number)
        indices = indices // before[number]
        made = made + (place if move is None else move(place)) * stride
        stride *= after[number]
    return made


def _behind(starts: Mapping[int, int]) -> dict[int, _PositionMap]:
    return {dim: partial(torch.add, other=start) for dim, start in starts.items() if start}


def adapted(
    pool: PooledWindows, op: Local, rows: Rows, shards: Mapping[int, AxisSharding]
) -> Local:
    """Make the adaptive pool: a call per window size, on windows laid out side by side."""
    owns = _owns(pool, shards, "count")
    groups = {dim: pool.windows[dim].by_size(own) for dim, own in owns.items()}
    starts = {dim: pool.windows[dim].rows_read(own).offset for dim, own in owns.items()}

    def over(
        x: torch.Tensor, left: Sequence[int], size: Sequence[int], moves: dict[int, _PositionMap]
    ) -> list[torch.Tensor]:
        if not left:
            made = op(x, size)
            if isinstance(made, torch.Tensor):
                return [made]
            return [made[0], _moved(made[1], pool, x.shape[pool.first :], pool.sizes, moves)]
        dim, number = left[0], left[0] - pool.first
        pieces: list[list[torch.Tensor]] = []
        order: list[int] = []
        for places, taken in groups[dim]:
            index = torch.tensor(taken, dtype=torch.int64, device=x.device)
            there = {dim: partial(torch.take, index + starts[dim])}
            sizes = [*size[:number], len(places), *size[number + 1 :]]
            pieces.append(over(x.index_select(dim, index), left[1:], sizes, moves | there))
            order += places
        joined = [torch.cat(each, dim) for each in zip(*pieces, strict=True)]
        # Results are grouped by window size; the inverse permutation puts them back in order.
        back = torch.tensor(order, dtype=torch.int64, device=x.device).argsort()
        return [each.index_select(dim, back) for each in joined]

    def local(x: torch.Tensor, size: Sequence[int]) -> Any:
        (x,) = rows([x])
        made = over(x, list(owns), size, {})
        return made[0] if len(made) == 1 else tuple(made)

    return local


def shared_out(
    pool: PooledWindows, op: Local, rows: Rows, shards: Mapping[int, AxisSharding]
) -> Local:
    """Make the gradient of an adaptive average pool, with a call per window size."""
    owns = _owns(pool, shards)
    windows_reading = {dim: pool.windows[dim].windows_reading(own) for dim, own in owns.items()}
    groups = {dim: pool.windows[dim].by_size(each) for dim, each in windows_reading.items()}
    blocks = {dim: pool.windows[dim].rows_read(each) for dim, each in windows_reading.items()}

    def over(grad: torch.Tensor, left: Sequence[int], shape: Sequence[int]) -> torch.Tensor:
        if not left:
            return op(grad, grad.new_empty(shape))
        dim = left[0]
        made = grad.new_zeros([*shape[:dim], blocks[dim].size, *shape[dim + 1 :]])
        for places, taken in groups[dim]:
            here, there = (torch.tensor(each, device=grad.device) for each in (places, taken))
            given = [*shape[:dim], len(taken), *shape[dim + 1 :]]
            part = over(grad.index_select(dim, here), left[1:], given)
            made = made.index_add(dim, there, part)
        return fitted(made, dim, blocks[dim], owns[dim])

    def local(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        grad, _ = rows([grad, x])
        shape = [owns[dim].size if dim in owns else size for dim, size in enumerate(x.shape)]
        if 0 in grad.shape or 0 in shape:
            return grad.new_zeros(shape)
        return over(grad, list(owns), shape)

    return local


def spread(pool: PooledWindows, op: Local, rows: Rows, shards: Mapping[int, AxisSharding]) -> Local:
    """Make the gradient of an average pool."""
    owns = _owns(pool, shards)
    windows_reading = {dim: pool.windows[dim].windows_reading(own) for dim, own in owns.items()}
    parts = {
        dim: WindowPart.within(pool.windows[dim], each) for dim, each in windows_reading.items()
    }

    def local(grad: torch.Tensor, x: torch.Tensor, *args: Any) -> torch.Tensor:
        grad, _ = rows([grad, x])
        if 0 in grad.shape or 0 in x.shape:
            return grad.new_zeros(x.shape)
        shape = list(x.shape)
        for dim, part in parts.items():
            shape[dim] = part.block.size
            count = pool.count(dim, part.block.size)
            grad = fitted(grad, dim, windows_reading[dim], Extent(part.made.offset, count))
        made = op(grad, x.new_empty(shape), *args)
        for dim, part in parts.items():
            made = fitted(made, dim, part.block, owns[dim])
        return made

    return local


def scattered(
    pool: PooledWindows, op: Local, rows: Rows, shards: Mapping[int, AxisSharding]
) -> Local:
    """Make the gradient of a max pool: each element is added at its index."""
    owns = _owns(pool, shards)
    blocks = {
        dim: pool.windows[dim].rows_read(pool.windows[dim].windows_reading(own))
        for dim, own in owns.items()
    }

    def local(grad: torch.Tensor, x: torch.Tensor, *args: Any) -> torch.Tensor:
        grad, _, indices = rows([grad, x, args[-1]])
        if 0 in grad.shape or 0 in x.shape:
            return grad.new_zeros(x.shape)
        shape = list(x.shape)
        for dim, block in blocks.items():
            shape[dim] = block.size
        sizes = shape[pool.first :]
        starts = {dim: -block.offset for dim, block in blocks.items()}
        indices = _moved(indices, pool, pool.sizes, sizes, _behind(starts))
        made = grad.new_zeros([*shape[: pool.first], math.prod(sizes)])
        made = made.scatter_add(-1, indices.flatten(pool.first), grad.flatten(pool.first))
        made = made.reshape(shape)
        for dim, block in blocks.items():
            made = fitted(made, dim, block, owns[dim])
        return made

    return local


def _owns(
    pool: PooledWindows, shards: Mapping[int, AxisSharding], what: str = "size"
) -> dict[int, Extent]:
    """Return this rank's rows, or its windows, of each sharded dim."""
    return {
        dim: local_extent(getattr(pool.windows[dim], what), shard.num_shards, shard.coord)
        for dim, shard in shards.items()
    }
