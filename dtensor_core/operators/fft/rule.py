"""Fourier transforms: linear; the dimensions that are not transformed are sharded freely."""

from __future__ import annotations

from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.operands import factor_sizes, full_operand
from dtensor_core.operators.rules.row import Row, same_row
from dtensor_core.operators.rules.sharding_rule import ShardingRule


def _transformed(call: Call) -> ShardingRule:
    """A transform along `dim`: linear; the other dims may be sharded."""
    shape = call.specs[0].shape
    dims = {dim % len(shape) for dim in call.args[1]}
    full = full_operand(shape)
    return ShardingRule(
        inputs=(full,),
        outputs=(tuple(() if dim in dims else names for dim, names in enumerate(full)),),
        sizes=factor_sizes(shape),
        blocked=frozenset(f"d{dim}" for dim in dims),
        terms=((0,),),
        algebra="linear",
    )


ROWS = same_row("_fft_c2c _fft_r2c _fft_c2r", Row(_transformed, "dim replicated", "linear"))
