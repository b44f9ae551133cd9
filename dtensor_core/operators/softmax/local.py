"""Softmax and logsumexp along a sharded dimension, from per-rank sums of exponentials.

Half-precision values are accumulated in float32.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from dtensor_core.operators.kernels.local_operator import Local, accumulation_dtype
from dtensor_core.redistribute.partial_combine import RankOrder

aten = torch.ops.aten


def logs(op: Local, order: RankOrder) -> Local:
    """Make logsumexp."""

    def log_of_sum(x: torch.Tensor, dim: Any, keepdim: bool = False) -> torch.Tensor:
        (ranks,) = order.gather(op(order.filled(x), dim, keepdim))
        return op(ranks, [0])

    return log_of_sum


def normed(op: Local, order: RankOrder) -> Local:
    """Make softmax or its logarithm; rows with an infinity become nan, as on a single device."""
    name = op._schema.name.removeprefix("aten::")  # pyright: ignore

    def softmax(x: torch.Tensor, dim: int, to: Any = None, **kwargs: Any) -> torch.Tensor:
        result = to if isinstance(to, torch.dtype) else torch.float32 if to else x.dtype
        values = x.to(accumulation_dtype(result))
        (ranks,) = order.gather(order.filled(values).logsumexp(dim, keepdim=True))
        total = ranks.logsumexp(0)
        # Otherwise a finite value minus infinity would give 0, where one device gives nan.
        total = total.masked_fill(total == math.inf, math.nan)
        made = values - total if name == "_log_softmax" else (values - total).exp()
        if name == "_safe_softmax":
            made = made.masked_fill(total == -math.inf, 0)
        return made.to(result)

    return softmax


def normed_backward(op: Local, order: RankOrder) -> Local:
    """Make the gradient of a softmax, or of its logarithm."""
    is_log = "log" in op._schema.name  # pyright: ignore[reportFunctionMemberAccess]

    def backward(
        grad: torch.Tensor, output: torch.Tensor, dim: int, dtype: torch.dtype
    ) -> torch.Tensor:
        slope, out = (each.to(accumulation_dtype(output.dtype)) for each in (grad, output))
        (ranks,) = order.gather((slope if is_log else slope * out).sum(dim, keepdim=True))
        total = ranks.sum(0)
        return (slope - out.exp() * total if is_log else (slope - total) * out).to(dtype)

    return backward
