"""Channels that become rows and columns, and back: pixel_shuffle, channel_shuffle."""

from __future__ import annotations

from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.operands import factor_sizes, full_operand
from dtensor_core.operators.rules.row import Row
from dtensor_core.operators.rules.rule_builders import structural_rule
from dtensor_core.operators.rules.sharding_rule import ShardingRule


def _pixels(call: Call) -> ShardingRule:
    """Channels (c u v), rows h, columns w <-> c, (h u), (w v)."""
    forth = call.op._schema.name.endswith("pixel_shuffle")
    factor = int(call.args[1])
    packed = call.specs[0].shape if forth else call.outputs[0].shape
    leading = full_operand(packed[:-3])
    sizes = factor_sizes(packed[:-3])
    sizes |= {"c": packed[-3] // factor**2, "u": factor, "v": factor}
    sizes |= {"h": packed[-2], "w": packed[-1]}
    operands = (
        (*leading, ("c", "u", "v"), ("h",), ("w",)),
        (*leading, ("c",), ("h", "u"), ("w", "v")),
    )
    inputs, outputs = operands if forth else operands[::-1]
    return structural_rule((inputs,), (outputs,), sizes, "uv")


def _channel_shuffle(call: Call) -> ShardingRule:
    """The channels (g c) become (c g)."""
    shape, groups = call.specs[0].shape, int(call.args[1])
    full = full_operand(shape)
    sizes = {**factor_sizes(shape), "g": groups, "c": shape[1] // groups}
    del sizes["d1"]
    inputs, outputs = ((full[0], each, *full[2:]) for each in (("g", "c"), ("c", "g")))
    return structural_rule((inputs,), (outputs,), sizes, "g")


ROWS = {
    "pixel_shuffle": Row(_pixels, "(c u! v!) h w -> c (h u!) (w v!)", "structural"),
    "pixel_unshuffle": Row(_pixels, "c (h u!) (w v!) -> (c u! v!) h w", "structural"),
    "channel_shuffle": Row(_channel_shuffle, "n (g! c) .. -> n (c g!) ..", "structural"),
}
