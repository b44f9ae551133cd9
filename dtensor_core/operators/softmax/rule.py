"""Softmax and logsumexp, from sums that ranks share along a sharded dimension.

Logsumexp combines the logarithms of the ranks' sums; softmax and its gradient need one number for
each sharded row. Types narrower than float32 are accumulated as float32.
"""

from __future__ import annotations

import torch

from dtensor_core.operators.kernels.local_operator import accumulation_dtype
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.row import Row, same_row
from dtensor_core.operators.rules.rule_builders import (
    reduced_dims,
    replicated_dim,
    replicated_reduced_dims,
)
from dtensor_core.operators.rules.sharding_rule import ShardingRule
from dtensor_core.operators.rules.summary_merge import merged
from dtensor_core.operators.softmax.local import logs, normed, normed_backward

aten = torch.ops.aten


def _log_of_sum(call: Call) -> ShardingRule:
    spec = call.specs[0]
    dims = reduced_dims(call, spec.ndim)
    return merged(replicated_reduced_dims(call), call, dims, call.outputs[0].dtype.itemsize, logs)


def _softmax(call: Call) -> ShardingRule:
    spec, dim = call.specs[0], int(call.argument("dim"))
    summary_bytes = accumulation_dtype(call.outputs[0].dtype).itemsize
    run = normed if len(call.specs) == 1 else normed_backward
    return merged(
        replicated_dim(call), call, (dim % max(spec.ndim, 1),), summary_bytes, run, stays=True
    )


ROWS = {
    "logsumexp": Row(_log_of_sum, "sharded dim: a result per rank"),
    **same_row(
        "_softmax _log_softmax _safe_softmax _softmax_backward_data _log_softmax_backward_data",
        Row(_softmax, "sharded dim: a sum of each rank"),
    ),
}
