"""Variances, logsumexp and softmax, from statistics that ranks share along a sharded dimension.

Variances are combined from counts, means and sums of squares (Chan, Golub and LeVeque 1979),
logsumexp from the logarithms of the ranks' sums; softmax and its gradient need one number for each
sharded row. Types narrower than float32 are accumulated as float32.
"""

from __future__ import annotations

import torch

from dtensor_core.local.moments import logs, moments, normed, normed_backward, wide
from dtensor_core.rules.call import Call
from dtensor_core.rules.families.reduction import reduced_dims, whole_dim, whole_dim_reduced
from dtensor_core.rules.merged import merged
from dtensor_core.rules.row import Row, alike
from dtensor_core.rules.rule import Rule

aten = torch.ops.aten


def _variance(call: Call) -> Rule:
    spec = call.specs[0]
    said = 2 * wide(spec.dtype).itemsize
    dims = reduced_dims(call, spec.ndim)
    return merged(whole_dim_reduced(call), call, dims, said, moments(dims))


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
    **alike("var std var_mean std_mean", Row(_variance, "along a cut dim moments of each rank")),
    "logsumexp": Row(_log_of_sum, "along a cut dim one of each rank"),
    **alike(
        "_softmax _log_softmax _safe_softmax _softmax_backward_data _log_softmax_backward_data",
        Row(_softmax, "along a cut dim a sum of each rank"),
    ),
}
