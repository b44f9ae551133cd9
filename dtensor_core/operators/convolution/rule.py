"""Convolutions: samples and output channels are sharded freely, input channels give partial sums.

x [n, i, s..], weight [o, i, k..] (transposed: [i, o, k..]), bias [o] -> [n, o, s..]. With groups
the channels are (group, channel within it), and groups are sharded evenly. Along a sharded spatial
dimension a halo exchange fetches the neighbours' rows that windows cover (`operators.rules.halo`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from dtensor_core.layout import Extent
from dtensor_core.operators.convolution.local import (
    Spatial,
    gradients_on_rows,
    local_groups,
    on_rows,
)
from dtensor_core.operators.kernels.windows import WindowPart, Windows, per_dim
from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.halo import exchanging_rows
from dtensor_core.operators.rules.row import Row
from dtensor_core.operators.rules.sharding_rule import Candidate, Dim, Operand, ShardingRule
from dtensor_core.placement import Partial, Replicate, Shard
from dtensor_core.spec import Spec


def _factors(call: Call, x: Spec, weight: Spec) -> tuple[dict[str, Operand], dict[str, int]]:
    """Return operands by role, and the sizes of the factors n, g, i, o."""
    groups, transposed = int(call.argument("groups")), bool(call.argument("transposed"))
    spatial: Operand = ((),) * (weight.ndim - 2)
    group: Dim = ("g",) if groups > 1 else ()
    sample: Operand = (("n",),) if x.ndim == weight.ndim else ()
    outer, inner = (("i",), ("o",)) if transposed else (("o",), ("i",))
    operands = {
        "x": (*sample, (*group, "i"), *spatial),
        "out": (*sample, (*group, "o"), *spatial),
        "weight": ((*group, *outer), inner, *spatial),
        "bias": ((*group, "o"),),
    }
    first, second = weight.shape[0] // groups, weight.shape[1]
    sizes = {"i": first, "o": second} if transposed else {"i": second, "o": first}
    if sample:
        sizes["n"] = x.shape[0]
    if group:
        sizes["g"] = groups
    return operands, sizes


def _forward(call: Call) -> ShardingRule:
    operands, sizes = _factors(call, call.specs[0], call.specs[1])
    roles = ("x", "weight", "bias")[: len(call.specs)]
    rule = ShardingRule(
        inputs=tuple(operands[role] for role in roles),
        outputs=(operands["out"],),
        sizes=sizes,
        blocked=_blocked_within_groups(call),
        terms=((0, 1), (2,))[: len(call.specs) - 1],
        algebra="linear",
        local=local_groups,
    )
    return _with_neighbours(rule, call)


def _backward(call: Call) -> ShardingRule:
    """grad, x, weight -> gradients of x, weight and bias, as requested."""
    operands, sizes = _factors(call, call.specs[1], call.specs[2])
    mask = call.argument("output_mask")
    wanted = [role for role, each in zip(("x", "weight", "bias"), mask, strict=True) if each]
    rule = ShardingRule(
        inputs=(operands["out"], operands["x"], operands["weight"]),
        outputs=tuple(operands[role] for role in wanted),
        sizes=sizes,
        # The bias has no input channel: every rank has its full gradient, not a partial sum.
        blocked=_blocked_within_groups(call) | ({"i"} if mask[2] else set()),
        terms=((0,),),
        algebra="linear",
        local=local_groups,
        extra=_input_channels(call, mask) if mask[2] else (),
    )
    return _backward_with_neighbours(rule, call)


def _input_channels(call: Call, mask: Sequence[bool]) -> tuple[Candidate, ...]:
    """Return the candidate with sharded input channels, for when the bias gradient is requested."""
    if int(call.argument("groups")) > 1:
        return ()
    x, weight = call.specs[1:3]
    sharded = Shard(x.ndim - weight.ndim + 1), Shard(0 if call.argument("transposed") else 1)
    wanted = [each for each, is_requested in zip(sharded, mask, strict=False) if is_requested]
    return (Candidate((Replicate(), *sharded), (*wanted, Replicate())),)


def _blocked_within_groups(call: Call) -> frozenset[str]:
    return frozenset("io" if int(call.argument("groups")) > 1 else "")


def _spatial(call: Call, x: Spec, weight: Spec, out: Sequence[int]) -> Spatial:
    number, transposed = weight.ndim - 2, bool(call.argument("transposed"))
    first = x.ndim - number
    settings = zip(
        *(per_dim(call.argument(name), number) for name in ("stride", "padding", "dilation")),
        strict=True,
    )
    windows: dict[int, Windows] = {}
    for n, (step, pad, dilation) in enumerate(settings):
        dim = first + n
        size, count = x.shape[dim], out[dim]
        if transposed:
            size, count = count, size
        reach = dilation * (weight.shape[2 + n] - 1) + 1
        windows[dim] = Windows(size, count, step, reach, pad)
    return Spatial(windows, first, transposed)


def _with_neighbours(rule: ShardingRule, call: Call) -> ShardingRule:
    """Allow spatial dims of x to be sharded: ranks fetch the rows that their windows read."""
    spatial = _spatial(call, call.specs[0], call.specs[1], call.outputs[0].shape)
    run = partial(on_rows, spatial)
    for dim in spatial.windows:
        wants = {0: lambda shard, dim=dim: spatial.part(dim, shard, of_x=False).needs}
        rule = exchanging_rows(rule, call, dim, wants, [Shard(dim)], run)
    return rule


def _backward_with_neighbours(rule: ShardingRule, call: Call) -> ShardingRule:
    """Exchange rows of the gradient (for x) and of x (for the weight) at once."""
    spatial = _spatial(call, call.specs[1], call.specs[2], call.specs[0].shape)
    mask = call.argument("output_mask")
    run = partial(gradients_on_rows, spatial, mask)
    outputs = (Partial(), Partial())[: sum(mask[1:])]
    for dim in spatial.windows:
        wants = {
            0: lambda shard, dim=dim: _needed(spatial.part(dim, shard, of_x=True), mask[0]),
            1: lambda shard, dim=dim: _needed(spatial.part(dim, shard, of_x=False), any(mask[1:])),
        }
        placements = (Shard(dim), *outputs) if mask[0] else outputs
        rule = exchanging_rows(rule, call, dim, wants, placements, run)
    return rule


def _needed(part: WindowPart, wanted: bool) -> Extent:
    return part.needs if wanted else Extent(0, 0)


ROWS = {
    "convolution": Row(
        _forward,
        "n (g i) s.., (g o) i k.. + (g o) -> n (g o) s..",
        "linear",
        ((0, 1), (2,)),
    ),
    "convolution_backward": Row(
        _backward,
        "n (g o) s.., n (g i) s.., (g o) i k.. -> n (g i) s.., (g o) i k.., (g o)",
        "linear",
    ),
}
