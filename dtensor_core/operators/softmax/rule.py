"""Softmax and logsumexp, from sums that ranks share along a sharded dimension.

Logsumexp combines the logarithms of the ranks' sums; softmax and its gradient need one number for
each sharded row. Types narrower than float32 are accumulated as float32.
"""

from __future__ import annotations

import torch

from dtensor_core.operators.call import Call
from dtensor_core.operators.local_operator import wide
from dtensor_core.operators.row import Row, alike
from dtensor_core.operators.rule_builders import reduced_dims, whole_dim, whole_dim_reduced
from dtensor_core.operators.sharding_rule import Rule
from dtensor_core.operators.softmax.local import logs, normed, normed_backward
from dtensor_core.operators.summary_merge import merged

aten = torch.ops.aten


def _log_of_sum(call: Call) -> Rule:
    spec = call.specs[0]
    dims = reduced_dims(call, spec.ndim)
    return merged(whole_dim_reduced(call), call, dims, call.outputs[0].dtype.itemsize, logs)


def _softmax(call: Call) -> Rule:
    spec, dim = call.specs[0], int(call.argument("dim"))
    said = wide(call.outputs[0].dtype).itemsize
    run = normed if len(call.specs) == 1 else normed_backward
    return merged(whole_dim(call), call, (dim % max(spec.ndim, 1),), said, run, stays=True)


ROWS = {
    "logsumexp": Row(_log_of_sum, "along a cut dim one of each rank"),
    **alike(
        "_softmax _log_softmax _safe_softmax _softmax_backward_data _log_softmax_backward_data",
        Row(_softmax, "along a cut dim a sum of each rank"),
    ),
}
