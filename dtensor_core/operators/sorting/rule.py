"""Positions of extreme elements: ranks combine their best values and positions.

Among equal elements the first counts, as on a single device. `topk` may return any of them,
depending on its kernel, so types with many equal elements need a replicated dimension there.
"""

from __future__ import annotations

import torch

from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.operands import factor_sizes, full_operand
from dtensor_core.operators.rules.row import Row, same_row
from dtensor_core.operators.rules.rule_builders import (
    reduced_dims,
    replicated_dim,
    replicated_reduced_dims,
)
from dtensor_core.operators.rules.sharding_rule import ShardingRule
from dtensor_core.operators.rules.summary_merge import merged
from dtensor_core.operators.sorting.local import best, extremes_and_places, least_and_most, places
from dtensor_core.spec import Spec

aten = torch.ops.aten
_PLACE_BYTES = torch.int64.itemsize


def _extreme(call: Call) -> ShardingRule:
    spec = call.specs[0]
    dims = reduced_dims(call, spec.ndim)
    run = extremes_and_places if len(call.outputs) == 2 else places
    return merged(
        replicated_reduced_dims(call), call, dims, spec.dtype.itemsize + _PLACE_BYTES, run
    )


def _both_extremes(call: Call) -> ShardingRule:
    spec = call.specs[0]
    dims = reduced_dims(call, spec.ndim)
    return merged(
        replicated_reduced_dims(call), call, dims, 2 * spec.dtype.itemsize, least_and_most
    )


def _top(call: Call) -> ShardingRule:
    spec, k = call.specs[0], int(call.argument("k"))
    if spec.dtype not in (torch.float32, torch.float64):
        return replicated_dim(call)
    dim = int(call.argument("dim")) % max(spec.ndim, 1)
    summary_bytes = k * (spec.dtype.itemsize + _PLACE_BYTES)
    return merged(replicated_dim(call), call, (dim,), summary_bytes, best)


def _sorted_and_sought(call: Call) -> ShardingRule:
    """Each shard of the sorted dim counts the elements before a value; the counts are summed."""
    buckets = call.op._schema.name == "aten::bucketize"
    given = [call.argument("self"), call.argument("boundaries" if buckets else "sorted_sequence")]
    values, order = given if isinstance(given[0], Spec) else (None, given[1])
    sought = full_operand(values.shape if values else ())
    own = tuple(sought[: order.ndim - 1]) if order.ndim > 1 else ()
    sizes = {**factor_sizes(values.shape if values else ()), "s": order.shape[-1]}
    operands = ((*own, ("s",)), *([sought] if values else []))
    rest = [(*own, ("s",))] * (len(call.specs) - len(operands))
    return ShardingRule(
        inputs=(*(operands[::-1] if buckets else operands), *rest),
        outputs=(sought,),
        sizes=sizes,
        blocked=frozenset("s" if rest else ""),
    )


def _is_in(call: Call) -> ShardingRule:
    """Membership in test elements, or with `invert` absence, tested on each shard of them."""
    named = [("elements", "e"), ("test_elements", "t"), ("element", "e"), ("test_element", "t")]
    found = [(call.argument(name), letter) for name, letter in named]
    given = [(spec, letter) for spec, letter in found if isinstance(spec, Spec)]
    operands = [tuple((f"{letter}{n}",) for n in range(spec.ndim)) for spec, letter in given]
    sizes = {f"{letter}{n}": size for spec, letter in given for n, size in enumerate(spec.shape)}
    out = tuple((f"e{n}",) for n in range(len(call.outputs[0].shape)))
    return ShardingRule(
        tuple(operands), (out,), sizes, reduce="min" if call.argument("invert") else "max"
    )


ROWS = {
    **same_row("searchsorted bucketize", Row(_sorted_and_sought, "sorted dim: sum of shards")),
    "isin": Row(_is_in, "test elements: max or min of shards"),
    **same_row(
        "max.dim min.dim argmax argmin", Row(_extreme, "sharded dim: the best of each rank")
    ),
    "aminmax": Row(_both_extremes, "sharded dim: both of each rank"),
    "topk": Row(_top, "sharded dim: the best k of each rank"),
    **same_row("sort", Row(replicated_dim, "dim replicated")),
    **same_row(
        "median nanmedian kthvalue mode", Row(replicated_reduced_dims, "dim replicated, reduced")
    ),
}
