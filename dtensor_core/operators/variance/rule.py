"""Variances and standard deviations, from moments that ranks share along a sharded dimension.

They are combined from counts, means and sums of squares (Chan, Golub and LeVeque 1979). Types
narrower than float32 are accumulated as float32.
"""

from __future__ import annotations

from dtensor_core.operators.kernels.local_operator import accumulation_dtype
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.row import Row, same_row
from dtensor_core.operators.rules.rule_builders import reduced_dims, replicated_reduced_dims
from dtensor_core.operators.rules.sharding_rule import ShardingRule
from dtensor_core.operators.rules.summary_merge import merged
from dtensor_core.operators.variance.local import moments


def _variance(call: Call) -> ShardingRule:
    spec = call.specs[0]
    summary_bytes = 2 * accumulation_dtype(spec.dtype).itemsize
    dims = reduced_dims(call, spec.ndim)
    return merged(replicated_reduced_dims(call), call, dims, summary_bytes, moments(dims))


ROWS = same_row(
    "var std var_mean std_mean", Row(_variance, "sharded dim: the moments of each rank")
)
