"""Interpolation along sharded dims: the source rows of each row of the result, and their weights.

Along a dim, an operator computes weighted sums of a few rows. The weights are measured with the
operator itself: rows are coloured so that no two nearby rows have the same colour, and the result
for a colour is the weight of its row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from dtensor_core.layout import AxisSharding, Extent, local_extent
from dtensor_core.operators.kernels.local_operator import Local, LocalMaker, zeros
from dtensor_core.operators.kernels.windows import extent
from dtensor_core.redistribute.halo_exchange import Rows
from dtensor_core.spec import Spec
from dtensor_core.tracing import no_modes


@dataclass(frozen=True, eq=False)
class Taps:
    """Linear map along a dim from `size` source rows to rows of a result.

    Row i of the result is the sum over k of `weights[k][i]` times source row `first[i] + k`. Rows
    from `last[i]` on are not read. Stored as lists, so that traced graphs hold no tensors of
    them.
    """

    size: int
    first: list[int]
    last: list[int]
    weights: list[list[float]]

    def rows_read(self, made: Extent) -> Extent:
        """Return the extent of source rows of some rows of the result."""
        first, last = (_part(each, made) for each in (self.first, self.last))
        return extent(min(first), max(last)) if made.size else Extent(0, 0)

    def windows_reading(self, rows: Extent) -> Extent:
        """Return the extent of rows of the result that depend on any of these source rows."""
        end = rows.offset + rows.size
        both = enumerate(zip(self.first, self.last, strict=True))
        found = [i for i, (first, last) in both if max(first, rows.offset) < min(last, end)]
        return extent(found[0], found[-1] + 1) if found else Extent(0, 0)

    def result_rows(self, x: torch.Tensor, dim: int, own: Extent) -> torch.Tensor:
        """Compute rows of the result from their source rows."""
        if not own.size:
            return x.narrow(dim, 0, 0)
        rows_read, made = self.rows_read(own), None
        first, last = (_part(each, own) for each in (self.first, self.last))
        for k, weights in enumerate(self.weights):
            rows = [min(n + k - rows_read.offset, rows_read.size - 1) for n in first]
            part = x.index_select(dim, torch.tensor(rows, device=x.device))
            if len(self.weights) > 1 or set(weights) != {1.0}:
                part = part * _along(_part(weights, own), x, dim)
            beyond = [n + k >= end for n, end in zip(first, last, strict=True)]
            if any(beyond):  # not read, which differs from weight 0: that makes nan of infinities
                part = part.masked_fill(_along(beyond, x, dim).bool(), 0)
            made = part if made is None else made + part
        assert made is not None
        return made

    def source_gradient(self, grad: torch.Tensor, dim: int, own: Extent) -> torch.Tensor:
        """Compute the gradient of source rows from the gradient of the result."""
        windows_reading = self.windows_reading(own)
        made = grad.new_zeros([*grad.shape[:dim], own.size, *grad.shape[dim + 1 :]])
        for k, weights in enumerate(self.weights):
            first, last = (_part(each, windows_reading) for each in (self.first, self.last))
            rows = [n + k - own.offset for n in first]
            given = _part(weights, windows_reading)
            taken = [i for i, n in enumerate(rows) if 0 <= n < own.size and first[i] + k < last[i]]
            if taken:
                to, of = ([rows[i] for i in taken], [given[i] for i in taken])
                here, there = (torch.tensor(each, device=grad.device) for each in (taken, to))
                part = grad.index_select(dim, here) * _along(of, grad, dim)
                made = made.index_add(dim, there, part)
        return made


def _part(values: list[Any], rows: Extent) -> list[Any]:
    return values[rows.offset : rows.offset + rows.size]


def _along(weights: Sequence[float], x: torch.Tensor, dim: int) -> torch.Tensor:
    made = torch.tensor(weights, dtype=x.dtype, device=x.device)
    return made.view(-1, *[1] * (x.ndim - dim - 1))


@lru_cache(maxsize=256)
def taps(
    op: Callable[..., Any],
    own: int,
    sizes: tuple[int, int],
    reach: int,
    scale: float | None,
    dtype: torch.dtype,
    options: tuple[tuple[str, Any], ...],
) -> Taps:
    """Measure the weights of `op`, which has `own` dims, along one of them.

    Args:
        op: The operator.
        own: The number of dims that it interpolates.
        sizes: The sizes of the source and of the result.
        reach: The distance of influence on a row of the result, in rows of the coarser tensor;
            negative if antialiased.
        scale: The scale factor passed to the operator.
        dtype: The dtype of the computation.
        options: Further arguments of the operator.
    """
    size, count = sizes
    ratio = 1 / scale if scale else size / count
    corners = dict(options).get("align_corners", False)
    if corners:
        ratio = (size - 1) / (count - 1) if count > 1 else 0.0
    support = math.ceil(-reach * max(ratio, 1.0)) if reach < 0 else reach
    colours = min(2 * support + 5, size)
    with no_modes(), torch.no_grad():
        place = torch.arange(count, dtype=torch.float64)
        place = place * ratio if corners else (place + 0.5) * ratio - 0.5
        start = (place.floor().long() - support - 2).clamp(0, size - colours)
        rows = torch.arange(size)
        given = (rows % colours == torch.arange(colours).unsqueeze(1)).to(dtype)
        given = given.view(1, colours, *[1] * (own - 1), size)
        name = "scales" if own == 1 else "scales_w"
        near = (start.unsqueeze(1) + torch.arange(colours)) % colours

        def along(given: torch.Tensor) -> torch.Tensor:
            result = op(given, [1] * (own - 1) + [count], **dict(options), **{name: scale})
            return result.view(colours, count).T.double().gather(1, near)

        weights = along(given)
        # A row that is read with weight 0 counts too: an infinity there makes the result nan.
        present = along(given.masked_fill(given != 0, math.nan)).isnan().int()
        lead = present.argmax(1)
        width = colours - present.flip(1).argmax(1) - lead
        span = torch.arange(int(width.max()))
        kept = weights.gather(1, (lead.unsqueeze(1) + span).clamp(max=colours - 1))
        kept = kept * (span < width.unsqueeze(1))
        first = start + lead
        return Taps(size, first.tolist(), (first + width).tolist(), kept.T.tolist())


def resampled(
    taps_of: Callable[[int], Taps],
    dims: Sequence[int],
    backward: bool,
    op: Local,
    rows: Rows,
    shards: Mapping[int, AxisSharding],
) -> Local:
    """Make the operator of these dims, or its gradient, applied dim by dim."""
    found = {dim: taps_of(dim) for dim in dims}
    sizes = {dim: each.size if backward else len(each.first) for dim, each in found.items()}
    every = dict.fromkeys(dims, AxisSharding(1, 0)) | dict(shards)
    owns = {dim: local_extent(sizes[dim], c.num_shards, c.coord) for dim, c in every.items()}

    def local(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        (made,) = rows([x])
        made = made.float() if x.is_floating_point() and x.dtype.itemsize < 4 else made
        for dim, each in found.items():
            if dim not in shards:
                needed = (each.windows_reading if backward else each.rows_read)(owns[dim])
                made = made.narrow(dim, needed.offset, needed.size)
            made = (each.source_gradient if backward else each.result_rows)(made, dim, owns[dim])
        return made.to(x.dtype)

    return local


def with_local_size(first: int, *, backward: bool) -> LocalMaker:
    """Make the operator with replicated spatial dims, which start at `first`.

    A gradient gets the local size of the resampled tensor, and an empty shard gives zeros.
    """

    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        nothing = zeros(op, [spec for spec in outputs if spec])  # pyright: ignore

        def local(x: torch.Tensor, size: Sequence[int], *rest: Any) -> torch.Tensor:
            if 0 in x.shape:
                return nothing(x)
            if backward:
                return op(x, size, [*x.shape[:first], *rest[0][first:]], *rest[1:])
            return op(x, size, *rest)

        return local

    return maker
