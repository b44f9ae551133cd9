"""Scans of rows that continue from the last rows of the preceding ranks."""

from __future__ import annotations

from typing import Any

import torch

from dtensor_core.operators.kernels.local_operator import Local, functional
from dtensor_core.redistribute.partial_combine import RankOrder
from dtensor_core.tracing import depending


def _last(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x.narrow(dim, x.shape[dim] - 1, 1)


def scanned(op: Local, order: RankOrder) -> Local:
    """Make cumulative sums, products and the like."""
    operator, in_place = functional(op), op._schema.is_mutable  # pyright: ignore

    def scan(x: torch.Tensor, dim: int, **kwargs: Any) -> torch.Tensor:
        size, filled = x.shape[dim], order.filled(x)
        made = operator(filled, dim, **kwargs)
        (ends,) = order.gather(_last(made, dim))
        if order.before:
            start = operator(ends[: order.before], 0)[-1]
            made = operator(torch.cat([start, filled], dim), dim, **kwargs).narrow(dim, 1, size)
        # The first rank uses no gathered rows; a compiler must not drop its collective.
        made = depending(made.narrow(dim, 0, size), ends)
        return x.copy_(made) if in_place else made

    return scan


def scanned_with_places(op: Local, order: RankOrder) -> Local:
    """Make cumulative extremes with their positions."""

    def scan(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
        dim, size, filled = dim % x.ndim, x.shape[dim], order.filled(x)
        values, places = op(filled, dim)
        places = places + order.offset(dim)
        ends, ends_at = order.gather(_last(values, dim), _last(places, dim))
        if order.before:
            start, whose = (each[-1:] for each in op(ends[: order.before], 0))
            start_at = ends_at.gather(0, whose)[0]
            values, places = op(torch.cat([start[0], filled], dim), dim)
            places = torch.where(places == 0, start_at, places - 1 + order.offset(dim))
            values, places = values.narrow(dim, 1, size), places.narrow(dim, 1, size)
        values, places = values.narrow(dim, 0, size), places.narrow(dim, 0, size)
        return depending(values, ends), depending(places, ends)

    return scan
