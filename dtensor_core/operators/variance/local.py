"""Variances and standard deviations along a sharded dimension, from per-rank moments.

They are combined from counts, means and sums of squares (Chan, Golub and LeVeque 1979).
Half-precision values are accumulated in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from dtensor_core.operators.kernels.local_operator import Local, accumulation_dtype
from dtensor_core.redistribute.partial_combine import RankOrder

aten = torch.ops.aten


def moments(dims: tuple[int, ...]) -> Callable[[Local, RankOrder], Local]:
    """Return a maker of variances and standard deviations over these dims."""

    def run(op: Local, order: RankOrder) -> Local:
        name = op._schema.name.removeprefix("aten::")  # pyright: ignore
        counts = [math.prod(shape[dim] for dim in dims) for shape in order.shapes]

        def moments(
            x: torch.Tensor, *unused: Any, correction: Any = None, keepdim: bool = False
        ) -> Any:
            filled = order.filled(x).to(accumulation_dtype(x.dtype))
            variance, mean = aten.var_mean.correction(filled, dims, correction=0, keepdim=keepdim)
            variances, means = order.gather(variance, mean)
            weights = means.new_tensor(counts, dtype=variance.dtype)
            weights = weights.view(-1, *[1] * mean.ndim)
            mean = (means * weights).sum(0) / sum(counts)
            squares = ((variances + (means - mean).abs().square()) * weights).sum(0)
            free = max(sum(counts) - (1 if correction is None else correction), 0)
            spread = squares / free
            spread = spread.sqrt() if name.startswith("std") else spread
            made = [
                each.to(x.dtype if each.dtype is accumulation_dtype(x.dtype) else each.dtype)
                for each in (spread, mean)
            ]
            return tuple(made) if name.endswith("mean") else made[0]

        return moments

    return run
