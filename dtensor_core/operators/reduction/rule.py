"""Reductions over dimensions: reducing a sharded dimension gives a Partial of that reduction.

A mean over a sharded dimension is the sum of the local elements over the global count, so that
uneven shards have their proper weight. Others are in `variance`, `softmax` and `sorting`.
"""

from __future__ import annotations

import math
from dataclasses import replace

from dtensor_core.operators.kernels.local_operator import LocalMaker
from dtensor_core.operators.reduction.local import (
    extreme,
    highest,
    lowest,
    mean_by_global_count,
    zero,
)
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.operands import factor_sizes, full_operand
from dtensor_core.operators.rules.row import Row
from dtensor_core.operators.rules.rule_builders import (
    kept_dims,
    reduced_dims,
    replicated_dim,
    replicated_rule,
)
from dtensor_core.operators.rules.sharding_rule import ShardingRule


def reduction(reduce: str, algebra: str, local: LocalMaker | None = None) -> Row:
    """Make a row for a reduction whose partial results are reduced by `reduce`."""

    def build(call: Call) -> ShardingRule:
        shape = call.specs[0].shape
        dims = reduced_dims(call, len(shape))
        unable = reduce == "product" and call.specs[0].dtype.is_complex  # no backend does that
        return ShardingRule(
            inputs=(full_operand(shape),),
            outputs=(kept_dims(shape, dims, bool(call.argument("keepdim", False))),),
            sizes=factor_sizes(shape),
            blocked=frozenset(f"d{dim}" for dim in dims if unable),
            reduce=reduce,
            terms=((0,),),
            algebra=algebra,
            local=local,
        )

    return Row(build, f"reduced dims: {reduce} of shards", algebra)


def _vector_norm(call: Call) -> ShardingRule:
    """Norms of shards reduce as norms, infinite orders as extremes, and order 0 as a sum."""
    shape = call.specs[0].shape
    named = [argument.name for argument in call.op._schema.arguments]
    order = call.argument("ord" if "ord" in named else "p")
    order = 2.0 if order is None else float(order)
    reduce, local = _NORMS.get(order, (f"norm{order:g}", None))
    dims = reduced_dims(call, len(shape))
    unsharded = order < 0 and order != -math.inf
    return ShardingRule(
        inputs=(full_operand(shape),),
        outputs=(kept_dims(shape, dims, bool(call.argument("keepdim", False))),),
        sizes=factor_sizes(shape),
        blocked=frozenset(f"d{dim}" for dim in dims if unsharded),
        reduce="sum" if unsharded else reduce,
        terms=((0,),),
        algebra=reduce if reduce.startswith("norm") and not unsharded else "opaque",
        local=local,
    )


def _histogram(call: Call) -> ShardingRule:
    """With given bounds each shard counts its elements; otherwise all elements are needed."""
    if call.argument("min") == call.argument("max"):
        return replicated_rule(call)
    shape = call.specs[0].shape
    return ShardingRule(
        (full_operand(shape),),
        ((("bins",),),),
        {**factor_sizes(shape), "bins": 1},
        frozenset({"bins"}),
    )


def _only_dim_sharded(call: Call) -> ShardingRule:
    """Only the named dimension may be sharded."""
    rule = replicated_dim(call)
    return replace(rule, blocked=frozenset(rule.sizes) - rule.blocked)


_NORMS = {
    math.inf: ("max", extreme(zero)),
    -math.inf: ("min", extreme(highest)),
    0.0: ("sum", None),
}
_MAXIMUM = reduction("max", "max", local=extreme(lowest))
_MINIMUM = reduction("min", "min", local=extreme(highest))

ROWS = {
    "_local_scalar_dense": Row(replicated_rule, "replicated: one number of all elements"),
    "equal": Row(replicated_rule, "replicated: one number of all elements"),
    "_linalg_check_errors": Row(replicated_rule, "replicated: one number of all elements"),
    "histc": Row(_histogram, "bounds given: sum of shards"),
    "allclose": Row(replicated_rule, "replicated: one number of all elements"),
    "sum": reduction("sum", "linear"),
    "mean": reduction("sum", "linear", local=mean_by_global_count),
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
    "linalg__powsum": reduction("sum", "opaque"),
    "renorm": Row(_only_dim_sharded, "only dim may be sharded"),
}
