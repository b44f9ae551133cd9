"""Elementwise rows with broadcasting: every dimension of the result may be sharded.

A row's `terms` state how the result depends on the arguments by position: `0+1` a sum, `0*1` a
product, `1+2` a sum of arguments 1 and 2 with the others as parameters. That decides which Partials
pass; monotone operators pass max and min.
"""

from __future__ import annotations

from dataclasses import replace

from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.row import Row
from dtensor_core.operators.rules.rule_builders import elementwise_rule
from dtensor_core.operators.rules.sharding_rule import ShardingRule


def pointwise(terms: str = "", algebra: str = "opaque") -> Row:
    """Make a row for an elementwise operator; see the module for `terms`."""
    wanted = [[int(position) for position in term.split("*")] for term in terms.split("+") if term]

    def build(call: Call) -> ShardingRule:
        numbers = [
            tuple(n for position in term if (n := call.number_at(position)) is not None)
            for term in wanted
        ]
        words = algebra if call.argument("rounding_mode") is None else "opaque"
        if not all(numbers):  # a term without a tensor is a constant
            words = words.replace("linear", "affine")
        if call.outputs[0].dtype.is_complex:  # complex numbers have no order
            words = words.replace("structural", "linear").replace("increasing", "")
        elif _subtracts(call):
            words = words.replace("increasing", "")
        return replace(elementwise_rule(call), terms=tuple(filter(None, numbers)), algebra=words)

    return Row(build, "elementwise", algebra, tuple(map(tuple, wanted)))


def _subtracts(call: Call) -> bool:
    """True if alpha reverses the order; read only if needed, as it then is part of the key."""
    placements = {placement for spec in call.specs for placement in spec.placements}
    if not any(each.is_partial("max") or each.is_partial("min") for each in placements):
        return False
    alpha = call.argument("alpha", 1)
    return isinstance(alpha, complex) or alpha < 0


OPAQUE = pointwise()
