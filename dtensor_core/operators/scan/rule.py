"""Scans (cumulative sums, products, extremes): a prefix scan along a sharded dimension.

Each rank contributes a row, the result of all of its rows. The operator itself combines the rows of
the ranks before into the row that a rank's scan starts from.
"""

from __future__ import annotations

from dataclasses import replace

from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.row import Row
from dtensor_core.operators.rules.rule_builders import replicated_dim
from dtensor_core.operators.rules.sharding_rule import ShardingRule
from dtensor_core.operators.rules.summary_merge import merged
from dtensor_core.operators.scan.local import scanned, scanned_with_places


def _scanned(call: Call) -> ShardingRule:
    spec = call.specs[0]
    rule, dim = replicated_dim(call), int(call.argument("dim")) % max(spec.ndim, 1)
    if call.op._schema.name.startswith("aten::cumsum"):
        rule = replace(rule, terms=((0,),), algebra="linear")
    row_bytes = sum(meta.dtype.itemsize for meta in call.outputs)
    run = scanned if len(call.outputs) == 1 else scanned_with_places
    return merged(rule, call, (dim,), row_bytes, run, stays=True)


_ALGEBRA = {"cumsum": "linear"} | dict.fromkeys(
    ("cumprod", "logcumsumexp", "cummax", "cummin"), "opaque"
)
ROWS = {
    name: Row(_scanned, "sharded dim: the last row of each rank", algebra)
    for name, algebra in _ALGEBRA.items()
}
