"""Numbers that must not be applied to partial sums before these are reduced.

A linear operator passes a Partial(sum) or a Partial(avg): its results of the partial sums add up to
its result of their sum. That holds for real numbers, but not always in floating point:

    an infinite factor, or 0 as a divisor    partial sums of both signs give inf - inf = nan
    any factor of float16                    a partial result may overflow where the sum fits

Numbers among the arguments are known to every rank, so that the partial sums are reduced first. The
values of tensors are not known without communication: see docs/operators.md. Called by `table` for
every rule.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.sharding_rule import ShardingRule

_SCALING = frozenset(("linear", "affine"))
_QUOTIENTS = frozenset(("div", "divide", "true_divide"))
_PRODUCTS = frozenset(("mul", "multiply", *_QUOTIENTS))
# Arguments that multiply a tensor in any operator; `other` does so in products only.
_FACTORS = frozenset(("alpha", "beta", "value", "scale", "weight"))


def exact(rule: ShardingRule, call: Call) -> ShardingRule:
    """Return the rule without the sums that the call's numbers would make inexact."""
    words = rule.algebra.split()
    if _SCALING.isdisjoint(words):
        return rule
    numbers = dict(call.numbers())
    if not numbers:
        return rule
    name = call.op._schema.name.removeprefix("aten::").removesuffix("_")
    factors = [
        number
        for argument, number in numbers.items()
        if argument in _FACTORS or (argument == "other" and name in _PRODUCTS)
    ]
    is_infinite = any(not _is_finite(number) for number in numbers.values())
    is_infinite = is_infinite or (name in _QUOTIENTS and 0 in factors)
    metas = (*call.specs, *call.outputs)
    overflows = bool(factors) and any(each.dtype is torch.float16 for each in metas)
    if not is_infinite and not overflows:
        return rule
    kept = " ".join(word for word in words if word not in _SCALING)
    blocked = rule.blocked | _summed_up(rule) if is_infinite else rule.blocked
    return replace(rule, algebra=kept or "opaque", blocked=blocked)


def _is_finite(number: complex) -> bool:
    return isinstance(number, int) or math.isfinite(abs(number))


def _summed_up(rule: ShardingRule) -> frozenset[str]:
    """Return the factors that no result has; sharding them leaves partial sums of scaled values."""
    left = {name for operand in rule.outputs for dim in operand for name in dim}
    return frozenset(rule.sizes) - left
