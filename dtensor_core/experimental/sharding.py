"""`register_sharding`: replaces an operator's rule by a list of acceptable placements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dtensor_core.dispatch.cache import CACHE
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.row import Row
from dtensor_core.operators.rules.sharding_rule import Candidate, ShardingRule
from dtensor_core.operators.table import replace_row
from dtensor_core.placement import Placement
from dtensor_core.torch_internals.dispatcher import OpOverload

Acceptable = Sequence[tuple[Sequence[Placement | None], Sequence[Placement | None]]]
Sharding = Callable[..., Acceptable]


def register_sharding(op: OpOverload | list[OpOverload]) -> Callable[[Sharding], Sharding]:
    """Register a function that lists the acceptable placements of an operator, as a decorator.

    The function gets the operator's arguments, with specs in place of tensors (`shape`, `ndim`,
    `placements`, ...). It returns pairs for a mesh axis: placements of the results, and
    placements of the flattened arguments with None for values that are not tensors. From then on
    only these are considered, and the cheapest is taken, without further checks. All arguments
    become part of the cache key.
    """

    def register(function: Sharding) -> Sharding:
        for each in op if isinstance(op, list) else [op]:
            replace_row(each, Row(lambda call: _rule(call, function), "registered"))
            CACHE.forget(each)
        return function

    return register


def _rule(call: Call, function: Sharding) -> ShardingRule:
    call.read.update(argument.name for argument in call.op._schema.arguments)
    offered = tuple(
        Candidate(
            tuple(placement for placement in inputs if placement is not None),
            tuple(placement for placement in outputs if placement is not None),
        )
        for outputs, inputs in function(*call.args, **call.kwargs)
    )
    return ShardingRule(
        inputs=tuple(() for _ in call.specs),
        outputs=tuple(() for _ in call.outputs),
        sizes={},
        extra=offered,
        offers_replicated=False,
    )
