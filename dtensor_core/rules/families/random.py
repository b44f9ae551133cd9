"""Random operators: every layout gives the numbers that one device would have drawn.

Each rank draws the whole tensor, in the memory order of the whole one, from the same generator
state and keeps its part, so replicas agree, shards differ, and the generators of all ranks stay
in step. Seeds must be equal on all ranks, as for any replicated computation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dtensor_core.placement import Partial, Replicate
from dtensor_core.rules.call import Call
from dtensor_core.rules.families.pointwise import factor_sizes, full_operand, operand_of
from dtensor_core.rules.row import Row
from dtensor_core.rules.rule import Candidate, LocalMaker, Rule
from dtensor_core.spec import Spec


def _draw_in_place(
    op: Callable[..., Any], inputs: Sequence[Spec], outputs: Sequence[Spec | None]
) -> Callable[..., Any]:
    """`x.bernoulli_(p)` and its like: draw for the global shape, copy in what is held."""
    spec = inputs[0]
    if spec.local_shape == tuple(spec.shape):
        return op

    def draw(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        whole = x.new_empty_strided(spec.shape, spec.stride)
        return x.copy_(spec.part_of(op(whole, *args, **kwargs)))

    return draw


def _draw_like(
    op: Callable[..., Any], inputs: Sequence[Spec], outputs: Sequence[Spec | None]
) -> Callable[..., Any]:
    """`rand_like(x)` and its like: draw for the global shape, keep what is held."""
    spec = outputs[0]
    if spec is None or spec.local_shape == tuple(spec.shape):
        return op

    def draw(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        whole = op(x.new_empty_strided(spec.shape, spec.stride), *args, **kwargs)
        return spec.part_of(whole).contiguous()

    return draw


def _draw_from(
    op: Callable[..., Any], inputs: Sequence[Spec], outputs: Sequence[Spec | None]
) -> Callable[..., Any]:
    """`bernoulli(x)`: each element takes one draw whatever its parameter, so only ours matter."""
    spec = inputs[0]
    if spec.local_shape == tuple(spec.shape):
        return op

    def draw(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        whole = x.new_empty_strided(spec.shape, spec.stride).zero_()
        spec.part_of(whole).copy_(x)
        return spec.part_of(op(whole, *args, **kwargs)).contiguous()

    return draw


def _dropout(
    op: Callable[..., Any], inputs: Sequence[Spec], outputs: Sequence[Spec | None]
) -> Callable[..., Any]:
    """native_dropout(x, p, train) -> (y, mask), the mask drawn for the global shape."""
    spec = inputs[0]
    if spec.local_shape == tuple(spec.shape):
        return op

    def dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
        _, whole = op(x.new_ones(spec.shape), p, train)
        mask = spec.part_of(whole).contiguous()
        scale = 0.0 if p == 1.0 else 1.0 / (1.0 - p)
        return x * mask * (scale if train else 1.0), mask

    return dropout


def _random(call: Call, local: LocalMaker) -> Rule:
    """Shards stay; the values of Partials are not drawn as addends."""
    shape = call.outputs[0].shape
    ignored = call.op._schema.name.endswith("_like")
    partials = dict.fromkeys(p for p in call.specs[0].placements if isinstance(p, Partial))
    return Rule(
        inputs=tuple(operand_of(spec.shape, shape) for spec in call.specs),
        outputs=(full_operand(shape),) * len(call.outputs),
        sizes=factor_sizes(shape),
        extra=tuple(Candidate((p,), (Replicate(),)) for p in partials) if ignored else (),
        local=local,
    )


def _in_place(call: Call) -> Rule:
    return _random(call, _draw_in_place)


def _like(call: Call) -> Rule:
    return _random(call, _draw_like)


def _native_dropout(call: Call) -> Rule:
    return _random(call, _dropout)


def _from(call: Call) -> Rule:
    return _random(call, _draw_from)


ROWS = {
    name: Row(_in_place, "elementwise, drawn whole")
    for name in [
        "bernoulli.float",
        "normal",
        "uniform",
        "exponential",
        "cauchy",
        "geometric",
        "log_normal",
        "random",
    ]
}
ROWS |= {
    name: Row(_like, "elementwise, drawn whole")
    for name in ("rand_like", "randn_like", "randint_like")
}
ROWS["bernoulli.default"] = Row(_from, "elementwise, drawn whole")
ROWS["native_dropout"] = Row(_native_dropout, "elementwise, mask drawn whole")
