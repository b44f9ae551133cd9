"""Reductions over dimensions: reducing a sharded dimension gives a Partial of that reduction.

A mean over a sharded dimension is the sum of the local elements over the global count, so that
uneven shards have their proper weight. Other reductions are in `moments`, `search` and `scan`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from dtensor_core.local.moments import wide
from dtensor_core.local.operator import Local, LocalMaker
from dtensor_core.rules.call import Call
from dtensor_core.rules.families.pointwise import factor_sizes, full_operand
from dtensor_core.rules.row import Row, whole_rule
from dtensor_core.rules.rule import Operand, Rule
from dtensor_core.spec import Spec
from dtensor_core.tracing import depending

aten = torch.ops.aten


def reduced_dims(call: Call, ndim: int) -> tuple[int, ...]:
    """Return the dimensions that a call reduces, non-negative; all of them if none is named."""
    dim = call.argument("dim")
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return tuple(range(ndim))
    dims = dim if isinstance(dim, (list, tuple)) else (dim,)
    return tuple(each % max(ndim, 1) for each in dims)


def _kept(shape: Sequence[int], dims: Sequence[int], keepdim: bool) -> Operand:
    operand = full_operand(shape)
    if keepdim:
        return tuple(() if dim in dims else names for dim, names in enumerate(operand))
    return tuple(names for dim, names in enumerate(operand) if dim not in dims)


def reduction(reduce: str, algebra: str, local: LocalMaker | None = None) -> Row:
    """Make a row for a reduction whose partial results are reduced by `reduce`."""

    def build(call: Call) -> Rule:
        shape = call.specs[0].shape
        dims = reduced_dims(call, len(shape))
        unable = reduce == "product" and call.specs[0].dtype.is_complex  # no backend does that
        return Rule(
            inputs=(full_operand(shape),),
            outputs=(_kept(shape, dims, bool(call.argument("keepdim", False))),),
            sizes=factor_sizes(shape),
            blocked=frozenset(f"d{dim}" for dim in dims if unable),
            reduce=reduce,
            terms=((0,),),
            algebra=algebra,
            local=local,
        )

    return Row(build, f"reduced dims: {reduce} of shards", algebra)


def _whole(call: Call, outputs_keep_dim: bool) -> Rule:
    """Build a rule in which every tensor has the first one's shape, and `dim` is not sharded."""
    shape = call.specs[0].shape
    dims = reduced_dims(call, len(shape))
    keepdim = outputs_keep_dim or bool(call.argument("keepdim", False))
    out = full_operand(shape) if outputs_keep_dim else _kept(shape, dims, keepdim)
    return Rule(
        inputs=(full_operand(shape),) * len(call.specs),
        outputs=(out,) * len(call.outputs),
        sizes=factor_sizes(shape),
        blocked=frozenset(f"d{dim}" for dim in dims),
    )


def whole_dim(call: Call) -> Rule:
    """Build a rule in which the dimension is not sharded, and every tensor has it."""
    return _whole(call, outputs_keep_dim=True)


def whole_dim_reduced(call: Call) -> Rule:
    """Build a rule in which the dimensions are not sharded, and no result has them."""
    return _whole(call, outputs_keep_dim=False)


def _mean_by_global_count(
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
        total = aten.sum.dim_IntList(x, dim or None, keepdim, dtype=wide(result))
        return total.div_(count).to(result)

    return mean


def _extreme(value: Callable[[torch.dtype], float]) -> LocalMaker:
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


def _zero(dtype: torch.dtype) -> float:
    return 0.0


def _lowest(dtype: torch.dtype) -> float:
    return -math.inf if dtype.is_floating_point else _range(dtype)[0]


def _highest(dtype: torch.dtype) -> float:
    return math.inf if dtype.is_floating_point else _range(dtype)[1]


def _range(dtype: torch.dtype) -> tuple[int, int]:
    return (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)


def _vector_norm(call: Call) -> Rule:
    """Norms of shards reduce as norms, infinite orders as extremes, and order 0 as a sum."""
    shape = call.specs[0].shape
    named = [argument.name for argument in call.op._schema.arguments]
    order = call.argument("ord" if "ord" in named else "p")
    order = 2.0 if order is None else float(order)
    reduce, local = _NORMS.get(order, (f"norm{order:g}", None))
    dims = reduced_dims(call, len(shape))
    whole = order < 0 and order != -math.inf
    return Rule(
        inputs=(full_operand(shape),),
        outputs=(_kept(shape, dims, bool(call.argument("keepdim", False))),),
        sizes=factor_sizes(shape),
        blocked=frozenset(f"d{dim}" for dim in dims if whole),
        reduce="sum" if whole else reduce,
        terms=((0,),),
        algebra=reduce if reduce.startswith("norm") and not whole else "opaque",
        local=local,
    )


def _histogram(call: Call) -> Rule:
    """With given bounds each shard counts its elements; otherwise all elements are needed."""
    if call.argument("min") == call.argument("max"):
        return whole_rule(call)
    shape = call.specs[0].shape
    return Rule(
        (full_operand(shape),),
        ((("bins",),),),
        {**factor_sizes(shape), "bins": 1},
        frozenset({"bins"}),
    )


def _others_whole(call: Call) -> Rule:
    """Only the named dimension may be sharded."""
    rule = whole_dim(call)
    return replace(rule, blocked=frozenset(rule.sizes) - rule.blocked)


_NORMS = {
    math.inf: ("max", _extreme(_zero)),
    -math.inf: ("min", _extreme(_highest)),
    0.0: ("sum", None),
}
_MAXIMUM = reduction("max", "max", local=_extreme(_lowest))
_MINIMUM = reduction("min", "min", local=_extreme(_highest))

ROWS = {
    "_local_scalar_dense": Row(whole_rule, "one number of all elements: whole"),
    "equal": Row(whole_rule, "one number of all elements: whole"),
    "_linalg_check_errors": Row(whole_rule, "one number of all elements: whole"),
    "histc": Row(_histogram, "bounds given: sum of shards"),
    "allclose": Row(whole_rule, "one number of all elements: whole"),
    "sum": reduction("sum", "linear"),
    "mean": reduction("sum", "linear", local=_mean_by_global_count),
    "linalg_vector_norm": Row(
        _vector_norm, "reduced dims: norm of norms; max, min or sum for inf, -inf, 0", "norm"
    ),
    "norm": Row(
        _vector_norm, "reduced dims: norm of norms; max, min or sum for inf, -inf, 0", "norm"
    ),
    "_is_any_true": reduction("max", "max"),
    "_is_all_true": reduction("min", "min"),
    "amax": _MAXIMUM,
    "amin": _MINIMUM,
    "max.default": _MAXIMUM,
    "min.default": _MINIMUM,
    "prod": reduction("product", "product"),
    "any": reduction("max", "opaque"),
    "all": reduction("min", "opaque"),
    "count_nonzero": reduction("sum", "opaque"),
    "nansum": reduction("sum", "opaque"),
    "renorm": Row(_others_whole, "only dim may be cut"),
}
