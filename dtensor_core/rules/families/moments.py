"""Variances, logarithms of sums of exponentials, softmax: what ranks that share a dimension say.

Variances are put together of counts, means and sums of squares (Chan, Golub and LeVeque 1979),
sums of exponentials of their logarithms; softmax and its gradient need one number of every row
that is cut. What is narrower than a float is summed up as one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from dtensor_core.local.operator import Local
from dtensor_core.rules.call import Call
from dtensor_core.rules.families.reduction import reduced_dims, whole_dim, whole_dim_reduced
from dtensor_core.rules.merged import Line, merged
from dtensor_core.rules.row import Row, alike
from dtensor_core.rules.rule import Rule

aten = torch.ops.aten


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The type in which something is summed up."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def _variance(call: Call) -> Rule:
    spec = call.specs[0]
    said = 2 * _wide(spec.dtype).itemsize
    dims = reduced_dims(call, spec.ndim)
    return merged(whole_dim_reduced(call), call, dims, said, _moments(dims))


def _moments(dims: tuple[int, ...]) -> Callable[[Local, Line], Local]:
    def run(op: Local, line: Line) -> Local:
        name = op._schema.name.removeprefix("aten::")  # pyright: ignore
        counts = [math.prod(shape[dim] for dim in dims) for shape in line.shapes]

        def moments(
            x: torch.Tensor, *unused: Any, correction: Any = None, keepdim: bool = False
        ) -> Any:
            filled = line.filled(x).to(_wide(x.dtype))
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
                each.to(x.dtype if each.dtype is _wide(x.dtype) else each.dtype)
                for each in (spread, mean)
            ]
            return tuple(made) if name.endswith("mean") else made[0]

        return moments

    return run


def _log_of_sum(call: Call) -> Rule:
    spec = call.specs[0]
    dims = reduced_dims(call, spec.ndim)
    return merged(whole_dim_reduced(call), call, dims, call.outputs[0].dtype.itemsize, _logs)


def _logs(op: Local, line: Line) -> Local:
    def log_of_sum(x: torch.Tensor, dim: Any, keepdim: bool = False) -> torch.Tensor:
        (ranks,) = line.gather(op(line.filled(x), dim, keepdim))
        return op(ranks, [0])

    return log_of_sum


def _softmax(call: Call) -> Rule:
    spec, dim = call.specs[0], int(call.argument("dim"))
    said = _wide(call.outputs[0].dtype).itemsize
    run = _normed if len(call.specs) == 1 else _normed_backward
    return merged(whole_dim(call), call, (dim % max(spec.ndim, 1),), said, run, stays=True)


def _normed(op: Local, line: Line) -> Local:
    name = op._schema.name.removeprefix("aten::")  # pyright: ignore

    def softmax(x: torch.Tensor, dim: int, to: Any = None, **kwargs: Any) -> torch.Tensor:
        result = to if isinstance(to, torch.dtype) else torch.float32 if to else x.dtype
        wide = x.to(_wide(result))
        (ranks,) = line.gather(line.filled(wide).logsumexp(dim, keepdim=True))
        total = ranks.logsumexp(0)
        made = wide - total if name == "_log_softmax" else (wide - total).exp()
        if name == "_safe_softmax":
            made = made.masked_fill(total == -math.inf, 0)
        return made.to(result)

    return softmax


def _normed_backward(op: Local, line: Line) -> Local:
    is_log = "log" in op._schema.name  # pyright: ignore[reportFunctionMemberAccess]

    def backward(
        grad: torch.Tensor, output: torch.Tensor, dim: int, dtype: torch.dtype
    ) -> torch.Tensor:
        wide, out = (each.to(_wide(output.dtype)) for each in (grad, output))
        (ranks,) = line.gather((wide if is_log else wide * out).sum(dim, keepdim=True))
        total = ranks.sum(0)
        return (wide - out.exp() * total if is_log else (wide - total) * out).to(dtype)

    return backward


ROWS = {
    **alike("var std var_mean std_mean", Row(_variance, "along a cut dim moments of each rank")),
    "logsumexp": Row(_log_of_sum, "along a cut dim one of each rank"),
    **alike(
        "_softmax _log_softmax _safe_softmax _softmax_backward_data _log_softmax_backward_data",
        Row(_softmax, "along a cut dim a sum of each rank"),
    ),
}
