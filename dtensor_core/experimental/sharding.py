"""`register_sharding`: acceptable placements for an operator, instead of its rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch._ops import OpOverload

from dtensor_core.dispatch.dispatcher import forget
from dtensor_core.placement import Placement
from dtensor_core.rules.call import Call
from dtensor_core.rules.row import Row
from dtensor_core.rules.rule import Candidate, Rule
from dtensor_core.rules.table import replace_row

Acceptable = Sequence[tuple[Sequence[Placement | None], Sequence[Placement | None]]]
Sharding = Callable[..., Acceptable]


def register_sharding(op: OpOverload | list[OpOverload]) -> Callable[[Sharding], Sharding]:
    """Decorate a function that says how an operator's results and arguments may be placed.

    It gets the operator's arguments, specs standing for tensors (`shape`, `ndim`, `placements`,
    ...), and returns pairs for one mesh axis: placements of the results, and placements of the
    flattened arguments with None for what is no tensor. Only these are considered from then on,
    the cheapest is taken; nothing is checked. All arguments are part of what is cached.
    """

    def register(function: Sharding) -> Sharding:
        for each in op if isinstance(op, list) else [op]:
            replace_row(each, Row(lambda call: _rule(call, function), "registered"))
            forget(each)
        return function

    return register


def _rule(call: Call, function: Sharding) -> Rule:
    call.read.update(argument.name for argument in call.op._schema.arguments)
    offered = tuple(
        Candidate(
            tuple(placement for placement in inputs if placement is not None),
            tuple(placement for placement in outputs if placement is not None),
        )
        for outputs, inputs in function(*call.args, **call.kwargs)
    )
    return Rule(
        inputs=tuple(() for _ in call.specs),
        outputs=tuple(() for _ in call.outputs),
        sizes={},
        extra=offered,
        offers_whole=False,
    )
