"""Writes of successive elements of a source where a replicated mask is true, and their gradient."""

from __future__ import annotations

from dtensor_core.operators.masked_scatter.local import gathering, scattering
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.operands import factor_sizes, full_operand, operand_of
from dtensor_core.operators.rules.row import Row
from dtensor_core.operators.rules.sharding_rule import ShardingRule


def _masked_scatter(call: Call) -> ShardingRule:
    """x, mask, source -> x, with the next element of source wherever the replicated mask is set.

    Also its gradient: grad, mask -> the gradient of source.
    """
    backward = len(call.specs) == 2
    shape = call.specs[0].shape if backward else call.outputs[0].shape
    replicated = (((),) * spec.ndim for spec in call.specs[1:])
    return ShardingRule(
        inputs=(operand_of(call.specs[0].shape, shape), *replicated),
        outputs=(((),) * len(call.outputs[0].shape) if backward else full_operand(shape),),
        sizes=factor_sizes(shape),
        terms=((0,),) if backward else ((0,), (2,)),
        algebra="linear" if backward else "structural",
        local=gathering if backward else scattering,
    )


_MASKED = "x sharded freely, mask and source replicated"

ROWS = {
    "masked_scatter": Row(_masked_scatter, _MASKED, "structural", ((0,), (2,))),
    "masked_scatter_backward": Row(_masked_scatter, _MASKED, "linear"),
}
