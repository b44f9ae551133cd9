"""Moments, sums of exponentials and softmax along a sharded dimension, from per-rank summaries.

Variances are combined from counts, means and sums of squares (Chan, Golub and LeVeque 1979).
Half-precision values are accumulated in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from dtensor_core.local.operator import Local
from dtensor_core.redistribute.partial_combine import Line

aten = torch.ops.aten


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for accumulation: float32 for half-precision dtypes."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def moments(dims: tuple[int, ...]) -> Callable[[Local, Line], Local]:
    """Return a maker of variances and standard deviations over these dims."""

    def run(op: Local, line: Line) -> Local:
        name = op._schema.name.removeprefix("aten::")  # pyright: ignore
        counts = [math.prod(shape[dim] for dim in dims) for shape in line.shapes]

        def moments(
            x: torch.Tensor, *unused: Any, correction: Any = None, keepdim: bool = False
        ) -> Any:
            filled = line.filled(x).to(wide(x.dtype))
            variance, mean = aten.var_mean.correction(filled, dims, correction=0, keepdim=keepdim)
            variances, means = line.gather(variance, mean)
            weights = means.new_tensor(counts, dtype=variance.dtype)
            weights = weights.view(-1, *[1] * mean.ndim)
            mean = (means * weights).sum(0) / sum(counts)
            squares = ((variances + (means - mean).abs().square()) * weights).sum(0)
            free = max(sum(counts) - (1 if correction is None else correction), 0)
            spread = squares / free
            spread = spread.sqrt() if name.startswith("std") else spread
            made = [
                each.to(x.dtype if each.dtype is wide(x.dtype) else each.dtype)
                for each in (spread, mean)
            ]
            return tuple(made) if name.endswith("mean") else made[0]

        return moments

    return run


def logs(op: Local, line: Line) -> Local:
    """Make logsumexp."""

    def log_of_sum(x: torch.Tensor, dim: Any, keepdim: bool = False) -> torch.Tensor:
        (ranks,) = line.gather(op(line.filled(x), dim, keepdim))
        return op(ranks, [0])

    return log_of_sum


def normed(op: Local, line: Line) -> Local:
    """Make softmax or its logarithm; rows with an infinity become nan, as on one device."""
    name = op._schema.name.removeprefix("aten::")  # pyright: ignore

    def softmax(x: torch.Tensor, dim: int, to: Any = None, **kwargs: Any) -> torch.Tensor:
        result = to if isinstance(to, torch.dtype) else torch.float32 if to else x.dtype
        values = x.to(wide(result))
        (ranks,) = line.gather(line.filled(values).logsumexp(dim, keepdim=True))
        total = ranks.logsumexp(0)
        total = total.masked_fill(total == math.inf, math.nan)
        made = values - total if name == "_log_softmax" else (values - total).exp()
        if name == "_safe_softmax":
            made = made.masked_fill(total == -math.inf, 0)
        return made.to(result)

    return softmax


def normed_backward(op: Local, line: Line) -> Local:
    """Make the gradient of a softmax, or of its logarithm."""
    is_log = "log" in op._schema.name  # pyright: ignore[reportFunctionMemberAccess]

    def backward(
        grad: torch.Tensor, output: torch.Tensor, dim: int, dtype: torch.dtype
    ) -> torch.Tensor:
        slope, out = (each.to(wide(output.dtype)) for each in (grad, output))
        (ranks,) = line.gather((slope if is_log else slope * out).sum(dim, keepdim=True))
        total = ranks.sum(0)
        return (slope - out.exp() * total if is_log else (slope - total) * out).to(dtype)

    return backward
