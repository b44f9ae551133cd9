"""Pools of local parts and of the rows of neighbours that windows see.

Indices count in the whole. Used by the rules of pools.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dtensor_core.layout import Cut, Extent, local_extent
from dtensor_core.local.operator import Local
from dtensor_core.local.windows import Part, Windows, fitted
from dtensor_core.redistribute.exchange import Rows


@dataclass(frozen=True)
class Pool:
    """The windows of each spatial dim that has any, of which the first is dim `first`.

    `sizes` are those of the spatial dims; `size_at` is the position of an argument that has the
    sizes of the result.
    """

    windows: Mapping[int, Windows]
    first: int
    sizes: Sequence[int]
    ceil: bool = False
    size_at: int | None = None

    def count(self, dim: int, rows: int) -> int:
        """How many windows an operator makes of so many rows."""
        windows = self.windows[dim]
        behind = rows + windows.pad
        room = behind + windows.pad - windows.reach + (windows.step - 1 if self.ceil else 0)
        count = room // windows.step + 1
        return count - 1 if self.ceil and (count - 1) * windows.step >= behind else count


def part(pool: Pool, dim: int, cut: Cut) -> Part:
    """What a rank pools along a dimension."""
    windows = pool.windows[dim]
    return Part.within(windows, local_extent(windows.count, cut.num_shards, cut.coord))


def pooled(pool: Pool, op: Local, rows: Rows, cuts: Mapping[int, Cut]) -> Local:
    """The pool, of what windows see."""
    parts = {dim: part(pool, dim, cut) for dim, cut in cuts.items()}

    def local(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        (x,) = rows([x])
        for dim, part in parts.items():
            x = fitted(x, dim, part.needs, part.block)
        given = [x, *args]
        if pool.size_at is not None:
            sizes = [*given[pool.size_at]]
            for dim, part in parts.items():
                sizes[dim - pool.first] = part.own.size
            given[pool.size_at] = sizes
        made = op(*given, **kwargs)
        if 0 in x.shape:
            return made
        results = [made] if isinstance(made, torch.Tensor) else list(made)
        for dim, part in parts.items():
            results = [fitted(each, dim, part.made, part.own) for each in results]
        if isinstance(made, torch.Tensor):
            return results[0]
        starts = {dim: part.block.offset for dim, part in parts.items()}
        results[1] = _moved(results[1], pool, x.shape[pool.first :], pool.sizes, starts)
        return tuple(results)

    return local


def _moved(
    indices: torch.Tensor,
    pool: Pool,
    before: Sequence[int],
    after: Sequence[int],
    starts: Mapping[int, int],
) -> torch.Tensor:
    """Indices into dims of other sizes, of which some start elsewhere."""
    if list(before) == list(after) and not any(starts.values()):
        return indices
    made, stride = torch.zeros_like(indices), 1
    for number in reversed(range(len(before))):
        place = indices % before[number] + starts.get(pool.first + number, 0)
        indices = indices // before[number]
        made, stride = made + place * stride, stride * after[number]
    return made


def spread(pool: Pool, op: Local, rows: Rows, cuts: Mapping[int, Cut]) -> Local:
    """The gradient of an average."""
    owns = _owns(pool, cuts)
    seeing = {dim: pool.windows[dim].seeing(own) for dim, own in owns.items()}
    parts = {dim: Part.within(pool.windows[dim], each) for dim, each in seeing.items()}

    def local(grad: torch.Tensor, x: torch.Tensor, *args: Any) -> torch.Tensor:
        grad, _ = rows([grad, x])
        if 0 in grad.shape or 0 in x.shape:
            return grad.new_zeros(x.shape)
        shape = list(x.shape)
        for dim, part in parts.items():
            shape[dim] = part.block.size
            count = pool.count(dim, part.block.size)
            grad = fitted(grad, dim, seeing[dim], Extent(part.made.offset, count))
        made = op(grad, x.new_empty(shape), *args)
        for dim, part in parts.items():
            made = fitted(made, dim, part.block, owns[dim])
        return made

    return local


def scattered(pool: Pool, op: Local, rows: Rows, cuts: Mapping[int, Cut]) -> Local:
    """The gradient of a maximum: each element goes to where its index says."""
    owns = _owns(pool, cuts)
    blocks = {
        dim: pool.windows[dim].seen(pool.windows[dim].seeing(own)) for dim, own in owns.items()
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
        indices = _moved(indices, pool, pool.sizes, sizes, starts)
        made = grad.new_zeros([*shape[: pool.first], math.prod(sizes)])
        made = made.scatter_add(-1, indices.flatten(pool.first), grad.flatten(pool.first))
        made = made.reshape(shape)
        for dim, block in blocks.items():
            made = fitted(made, dim, block, owns[dim])
        return made

    return local


def _owns(pool: Pool, cuts: Mapping[int, Cut]) -> dict[int, Extent]:
    return {
        dim: local_extent(pool.windows[dim].size, cut.num_shards, cut.coord)
        for dim, cut in cuts.items()
    }
