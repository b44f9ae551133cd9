"""Operators that keep the values: copies, conversions, aliases."""

from __future__ import annotations

from dataclasses import replace

import torch

from dtensor_core.operators.copy.local import fill_partial, filled_partial, masked_fill_partial
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.elementwise import pointwise
from dtensor_core.operators.rules.row import Row, same_row
from dtensor_core.operators.rules.rule_builders import elementwise_rule
from dtensor_core.operators.rules.sharding_rule import Candidate, ShardingRule
from dtensor_core.placement import Partial, Replicate


def _to_copy(call: Call) -> ShardingRule:
    """Conversion between floating-point and complex dtypes is linear, any other is not."""
    kinds = [dtype.is_floating_point + 2 * dtype.is_complex for dtype in _dtypes(call)]
    algebra = "opaque" if 0 in kinds else "linear" if 2 in kinds else "linear increasing"
    return replace(
        elementwise_rule(call),
        terms=((0,),),
        algebra="structural" if len(_dtypes(call)) == 1 else algebra,
    )


def _dtypes(call: Call) -> set[torch.dtype]:
    return {call.specs[0].dtype, call.outputs[0].dtype}


def _copy(call: Call) -> ShardingRule:
    """The source takes the layout of the destination, Partial included."""
    if len(call.specs) == 1:  # a number
        return _fill(call)
    partials = {p for p in call.specs[0].placements if isinstance(p, Partial)}
    extra = tuple(Candidate((partial, partial), (partial,)) for partial in partials)
    return replace(elementwise_rule(call), extra=extra)


def _fill(call: Call) -> ShardingRule:
    """Fill a partial value: one rank gets the constant, the others the neutral element."""
    partials = {p for p in call.specs[0].placements if isinstance(p, Partial)}
    rest = call.specs[1:]
    return replace(
        elementwise_rule(call),
        extra=tuple(
            Candidate((partial, *(partial for _ in rest)), (partial,))
            for partial in partials
            if rest or partial.reduce_op in ("sum", "avg", "max", "min")
        ),
        local=None if rest else fill_partial if call.op._schema.is_mutable else filled_partial,
    )


def _masked_fill(call: Call) -> ShardingRule:
    """x, mask, value: a partial value is filled on a single rank; the others hold zeros there."""
    sums = [p for p in call.specs[0].placements if p.is_partial("sum")]
    scalar = len(call.specs) == 2
    return replace(
        elementwise_rule(call),
        extra=(Candidate((sums[0], Replicate()), (sums[0],)),) if sums and scalar else (),
        terms=((0,),),
        algebra="affine increasing",
        local=masked_fill_partial if scalar else None,
    )


ROWS = {
    "_to_copy": Row(_to_copy, "elementwise; between floating types", "linear increasing"),
    "copy": Row(_copy, "source takes the layout of the destination"),
    **same_row("fill zero", Row(_fill, "elementwise")),
    "masked_fill": Row(
        _masked_fill, "elementwise; only one rank's partial sum is filled", "affine increasing"
    ),
    **same_row("clone detach alias lift_fresh", pointwise("0", "structural")),
}
