"""Gradients of padding: gradients of edges are added to the rows that the edges were copied from.

A rank that holds rows of the argument's gradient needs the rows of the result's gradient that were
made from them: the same rows, and their mirrored or repeated copies in the edges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dtensor_core.layout import AxisSharding, Extent, local_extent
from dtensor_core.operators.kernels.local_operator import Local
from dtensor_core.operators.kernels.windows import extent, fitted, meeting
from dtensor_core.redistribute.halo_exchange import Rows


@dataclass(frozen=True, slots=True)
class Padded:
    """A dim of `size` rows padded with `before` and `behind` rows; negative numbers remove rows.

    The padding mirrors the rows next to an edge, or repeats the edge row.
    """

    size: int
    before: int
    behind: int
    mirrors: bool

    def middle(self, rows: Extent) -> Extent:
        """Return the extent in the result of rows of the argument, without edges."""
        result = extent(0, self.before + self.size + self.behind)
        return meeting(Extent(rows.offset + self.before, rows.size), result)

    def edges(self, rows: Extent) -> list[range]:
        """Return the rows before and behind that are copies of `rows`, in their order."""
        last, start, end = self.size - 1, rows.offset, rows.offset + rows.size
        if self.mirrors:
            low = range(max(start, 1), min(end, self.before + 1))
            high = range(max(start, last - self.behind), min(end, last))
            return [
                range(centre - each.start, centre - each.stop, -1) if each else range(0)
                for each, centre in ((low, self.before), (high, self.before + 2 * last))
            ]
        beyond = self.before + self.size
        low = range(max(self.before, 0) if start == 0 and rows.size else 0)
        high = range(beyond, beyond + max(self.behind, 0) if start <= last < end else beyond)
        return [low, high]

    def needs(self, rows: Extent) -> Extent:
        """Return the extent of rows of the result that are made from `rows`."""
        middle = self.middle(rows)
        found = [row for each in self.edges(rows) if each for row in (each[0], each[-1])]
        if middle.size:
            found += [middle.offset, middle.offset + middle.size - 1]
        return extent(min(found), max(found) + 1) if found else Extent(0, 0)

    def folded(self, grad: torch.Tensor, dim: int, rows: Extent) -> torch.Tensor:
        """Compute the gradient of `rows` from the rows of the result's gradient that it needs."""
        needs, middle = self.needs(rows), self.middle(rows)
        kept = fitted(grad, dim, needs, middle) if middle.size else grad.narrow(dim, 0, 0)
        wanted = Extent(rows.offset + self.before, rows.size)
        made = fitted(kept, dim, middle, wanted).clone()
        for number, each in enumerate(self.edges(rows)):
            if each:
                edge = torch.tensor(each, device=grad.device)
                border = number * (self.size - 1)
                source = edge - self.before if self.mirrors else torch.full_like(edge, border)
                source = 2 * border - source if self.mirrors else source
                taken = grad.index_select(dim, edge - needs.offset)
                made.index_add_(dim, source - rows.offset, taken)
        return made


def folding(
    dims: Mapping[int, Padded],
    pads: Sequence[int],
    op: Local,
    rows: Rows,
    shards: Mapping[int, AxisSharding],
) -> Local:
    """Make the gradient of padding with some sharded dims."""
    left = list(pads)
    for dim in shards:
        place = 2 * (max(dims) - dim)
        left[place : place + 2] = 0, 0
    owns = {
        dim: local_extent(dims[dim].size, shard.num_shards, shard.coord)
        for dim, shard in shards.items()
    }

    def local(grad: torch.Tensor, x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        grad = rows([grad, x])[0]
        for dim, own in owns.items():
            grad = dims[dim].folded(grad, dim, own)
        if not any(left):
            return grad
        shape = [
            dims[n].size if n in dims and n not in owns else s for n, s in enumerate(grad.shape)
        ]
        if 0 in shape:
            return grad.new_zeros(shape)
        return op(grad, grad.new_empty(shape), left)

    return local
