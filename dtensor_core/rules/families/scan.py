"""Scans: along a cut dimension each rank scans its own rows, behind what those before it end with.

A rank sends one row. A scan goes on from a row that stands for all rows before, so that the
operator itself makes the row that a rank starts with, and its result.
"""

from __future__ import annotations

from dataclasses import replace

from dtensor_core.local.prefix_scan import scanned, scanned_with_places
from dtensor_core.rules.call import Call
from dtensor_core.rules.families.reduction import whole_dim
from dtensor_core.rules.merged import merged
from dtensor_core.rules.row import Row
from dtensor_core.rules.rule import Rule


def _scanned(call: Call) -> Rule:
    spec = call.specs[0]
    rule, dim = whole_dim(call), int(call.argument("dim")) % max(spec.ndim, 1)
    if call.op._schema.name.startswith("aten::cumsum"):
        rule = replace(rule, terms=((0,),), algebra="linear")
    row_bytes = sum(meta.dtype.itemsize for meta in call.outputs)
    run = scanned if len(call.outputs) == 1 else scanned_with_places
    return merged(rule, call, (dim,), row_bytes, run, stays=True)


_ALGEBRA = {"cumsum": "linear"} | dict.fromkeys(
    ("cumprod", "logcumsumexp", "cummax", "cummin"), "opaque"
)
ROWS = {
    name: Row(_scanned, "along a cut dim a row of each rank", algebra)
    for name, algebra in _ALGEBRA.items()
}
