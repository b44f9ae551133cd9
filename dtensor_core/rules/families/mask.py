"""Writing by a mask: `x[mask] = 0` is elementwise where mask and tensor have one shape."""

from __future__ import annotations

import torch

from dtensor_core.rules.call import Call
from dtensor_core.rules.families.pointwise import factor_sizes, full_operand, operand_of
from dtensor_core.rules.row import Row
from dtensor_core.rules.rule import Rule
from dtensor_core.spec import Spec


def _masked(call: Call) -> Rule | None:
    target, indices, value = call.args[:3]
    if len(indices) != 1 or not isinstance(indices[0], Spec):
        return None
    mask = indices[0]
    if mask.dtype is not torch.bool or mask.shape != target.shape or value.shape.numel() != 1:
        return None
    return Rule(
        inputs=(*(full_operand(target.shape),) * 2, operand_of(value.shape, target.shape)),
        outputs=(full_operand(target.shape),),
        sizes=factor_sizes(target.shape),
    )


ROWS = {"index_put": Row(_masked, "elementwise where a mask selects")}
