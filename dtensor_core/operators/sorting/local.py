"""Extremes of a sharded dimension and their positions, from the candidates of every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtensor_core.operators.kernels.local_operator import Local
from dtensor_core.redistribute.partial_combine import RankOrder

aten = torch.ops.aten


def _is_max(op: Local) -> bool:
    return "max" in op._schema.name  # pyright: ignore[reportFunctionMemberAccess]


def _best_of(
    values: torch.Tensor, places: torch.Tensor, *, largest: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the best value of all ranks and its first position; NaN precedes everything."""
    best = values.amax(0) if largest else values.amin(0)
    # A nan equals nothing, itself included, so its positions are found by the second comparison.
    is_best = (values == best) | (values != values)
    return best, places.masked_fill(~is_best, torch.iinfo(torch.int64).max).amin(0)


def extremes_and_places(op: Local, order: RankOrder) -> Local:
    """Make the operator for an extreme along a dimension and its position."""

    def extreme(
        x: torch.Tensor, dim: int, keepdim: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        values, places = op(order.filled(x), dim, keepdim)
        ranks = order.gather(values, places + order.offset(dim % x.ndim))
        return _best_of(*ranks, largest=_is_max(op))

    return extreme


def places(op: Local, order: RankOrder) -> Local:
    """Make the operator for positions of extremes along a dimension, or in the full tensor."""
    search = aten.max.dim if _is_max(op) else aten.min.dim

    def place(x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> torch.Tensor:
        if dim is not None:
            values, places = search(order.filled(x), dim, keepdim)
            ranks = order.gather(values, places + order.offset(dim % x.ndim))
            return _best_of(*ranks, largest=_is_max(op))[1]
        filled = order.filled(x)
        value, at = search(filled.reshape(-1), 0)
        place = torch.zeros_like(at)
        for n, coordinate in enumerate(torch.unravel_index(at, filled.shape)):
            place = place * order.shape[n] + coordinate + order.offset(n)
        found = _best_of(*order.gather(value, place), largest=_is_max(op))[1]
        return found.reshape([1] * x.ndim) if keepdim else found

    return place


def least_and_most(op: Local, order: RankOrder) -> Local:
    """Make the operator for both extremes."""

    def extremes(x: torch.Tensor, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        least, most = order.gather(*op(order.filled(x), **kwargs))
        return least.amin(0), most.amax(0)

    return extremes


def best(op: Local, order: RankOrder) -> Local:
    """Make `topk` from the candidates of all ranks, at most k and at most all rows of each."""

    def top(
        x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
    ) -> tuple[torch.Tensor, torch.Tensor]:
        dim = dim % x.ndim
        counts = [min(k, shape[dim]) for shape in order.shapes]
        filled = order.filled(x)
        values, places = op(filled, min(k, filled.shape[dim]), dim, largest, sorted)
        # An all-gather requires equal shapes, and a short shard has fewer than k candidates.
        padded = _padded(values, dim, max(counts)), _padded(places, dim, max(counts))
        gathered = order.gather(padded[0], padded[1] + order.offset(dim))
        values, places = (_side_by_side(each, dim, counts) for each in gathered)
        best, whose = op(values, k, dim, largest, sorted)
        return best, places.gather(dim, whose)

    return top


def _padded(x: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """Pad a dim to the length of the longest shard's candidates."""
    return aten.constant_pad_nd(x, [0, 0] * (x.ndim - 1 - dim) + [0, size - x.shape[dim]])


def _side_by_side(ranks: torch.Tensor, dim: int, counts: Sequence[int]) -> torch.Tensor:
    parts = [part.narrow(dim, 0, n) for part, n in zip(ranks.unbind(0), counts, strict=True)]
    return torch.cat(parts, dim)
