"""Reductions of local shards: means by the global count, and extremes of empty shards."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dtensor_core.operators.kernels.local_operator import Local, LocalMaker, accumulation_dtype
from dtensor_core.spec import Spec
from dtensor_core.tracing import depending

aten = torch.ops.aten


def mean_by_global_count(
    op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]
) -> Local:
    """Compute the mean as a sum over the global count if a reduced dimension is sharded.

    Sums of half-precision dtypes are float32 until they are divided.
    """
    if not inputs[0].is_sharded():
        return op
    shape = inputs[0].shape

    def mean(x: torch.Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None):
        dims = range(len(shape)) if not dim else [dim] if isinstance(dim, int) else dim
        count = 1
        for each in dims:
            count *= shape[each]
        result = dtype or x.dtype
        total = aten.sum.dim_IntList(x, dim or None, keepdim, dtype=accumulation_dtype(result))
        return total.div_(count).to(result)

    return mean


def extreme(value: Callable[[torch.dtype], float]) -> LocalMaker:
    """Make the operator return the neutral element of the extreme on an empty shard."""

    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        out = outputs[0]
        if 0 not in inputs[0].local_shape or out is None or out.dtype.is_complex:
            return op

        def neutral(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            made = x.new_full(out.local_shape, value(out.dtype), dtype=out.dtype)
            return depending(made, x)

        return neutral

    return maker


def zero(dtype: torch.dtype) -> float:
    """Return 0, the least norm."""
    return 0.0


def lowest(dtype: torch.dtype) -> float:
    """Return the neutral element of a maximum."""
    return -math.inf if dtype.is_floating_point else _range(dtype)[0]


def highest(dtype: torch.dtype) -> float:
    """Return the neutral element of a minimum."""
    return math.inf if dtype.is_floating_point else _range(dtype)[1]


def _range(dtype: torch.dtype) -> tuple[int, int]:
    return (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
