"""Convolutions: samples and output channels are sharded freely, input channels give partial sums.

x [n, i, s..], weight [o, i, k..] (transposed: [i, o, k..]), bias [o] -> [n, o, s..]. With groups
the channels are (group, channel within it), and groups are sharded evenly. Along a sharded spatial
dimension a halo exchange fetches the neighbours' rows that windows cover (`operators.halo`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dtensor_core.layout import Cut, Extent, local_extent
from dtensor_core.operators.call import Call
from dtensor_core.operators.convolution.local import local_groups
from dtensor_core.operators.halo import exchanging_rows
from dtensor_core.operators.local_operator import Local
from dtensor_core.operators.row import Row
from dtensor_core.operators.sharding_rule import Candidate, Dim, Operand, Rule
from dtensor_core.operators.windows import Part, Windows, fitted
from dtensor_core.placement import Partial, Replicate, Shard
from dtensor_core.redistribute.halo_exchange import Rows
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


def _forward(call: Call) -> Rule:
    operands, sizes = _factors(call, call.specs[0], call.specs[1])
    roles = ("x", "weight", "bias")[: len(call.specs)]
    rule = Rule(
        inputs=tuple(operands[role] for role in roles),
        outputs=(operands["out"],),
        sizes=sizes,
        blocked=_whole_within_groups(call),
        terms=((0, 1), (2,))[: len(call.specs) - 1],
        algebra="linear",
        local=local_groups,
    )
    return _with_neighbours(rule, call)


def _backward(call: Call) -> Rule:
    """grad, x, weight -> gradients of x, weight and bias, as requested."""
    operands, sizes = _factors(call, call.specs[1], call.specs[2])
    mask = call.argument("output_mask")
    wanted = [role for role, each in zip(("x", "weight", "bias"), mask, strict=True) if each]
    rule = Rule(
        inputs=(operands["out"], operands["x"], operands["weight"]),
        outputs=tuple(operands[role] for role in wanted),
        sizes=sizes,
        # The bias has no input channel: every rank has its full gradient, not a partial sum.
        blocked=_whole_within_groups(call) | ({"i"} if mask[2] else set()),
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
    cut = Shard(x.ndim - weight.ndim + 1), Shard(0 if call.argument("transposed") else 1)
    wanted = [each for each, asked in zip(cut, mask, strict=False) if asked]
    return (Candidate((Replicate(), *cut), (*wanted, Replicate())),)


def _whole_within_groups(call: Call) -> frozenset[str]:
    return frozenset("io" if int(call.argument("groups")) > 1 else "")


@dataclass(frozen=True)
class _Spatial:
    """Spatial dims of a convolution: windows are on x, or on the result if transposed."""

    windows: Mapping[int, Windows]
    first: int
    transposed: bool

    def part(self, dim: int, cut: Cut, *, of_x: bool) -> Part:
        """Return a rank's work for its part of the result, or for its part of the gradient of x."""
        windows = self.windows[dim]
        of_windows = of_x is self.transposed
        size = windows.count if of_windows else windows.size
        own = local_extent(size, cut.num_shards, cut.coord)
        return Part.of_windows(windows, own) if of_windows else Part.of_rows(windows, own)

    def unpadded(self, args: Sequence[Any], at: int, dims: Iterable[int]) -> list[Any]:
        """Return the arguments (strides at `at`) without padding in `dims`, whose blocks
        have it.
        """
        changed = list(args)
        for position in (at + 1, at + 4):
            values = _each(args[position], len(self.windows))
            changed[position] = [
                0 if self.first + n in dims else value for n, value in enumerate(values)
            ]
        return changed


def _each(values: Sequence[int], number: int) -> list[int]:
    return [*values] * (number // len(values))


def _spatial(call: Call, x: Spec, weight: Spec, out: Sequence[int]) -> _Spatial:
    number, transposed = weight.ndim - 2, bool(call.argument("transposed"))
    first = x.ndim - number
    settings = zip(
        *(_each(call.argument(name), number) for name in ("stride", "padding", "dilation")),
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
    return _Spatial(windows, first, transposed)


def _with_neighbours(rule: Rule, call: Call) -> Rule:
    """Allow spatial dims of x to be sharded: ranks fetch the rows that their windows read."""
    spatial = _spatial(call, call.specs[0], call.specs[1], call.outputs[0].shape)

    def run(op: Local, rows: Rows, cuts: Mapping[int, Cut]) -> Local:
        parts = {dim: spatial.part(dim, cut, of_x=False) for dim, cut in cuts.items()}

        def local(x: torch.Tensor, weight: torch.Tensor, *args: Any) -> torch.Tensor:
            (x,) = rows([x])
            for dim, part in parts.items():
                x = fitted(x, dim, part.needs, part.block)
            out = op(*spatial.unpadded([x, weight, *args], 3, parts))
            if 0 not in x.shape and 0 not in weight.shape:  # otherwise its size is right
                for dim, part in parts.items():
                    out = fitted(out, dim, part.made, part.own)
            return out

        return local

    for dim in spatial.windows:
        wants = {0: lambda cut, dim=dim: spatial.part(dim, cut, of_x=False).needs}
        rule = exchanging_rows(rule, call, dim, wants, [Shard(dim)], run)
    return rule


def _backward_with_neighbours(rule: Rule, call: Call) -> Rule:
    """Exchange rows of the gradient (for x) and of x (for the weight) at once."""
    spatial = _spatial(call, call.specs[1], call.specs[2], call.specs[0].shape)
    mask = call.argument("output_mask")

    def run(op: Local, rows: Rows, cuts: Mapping[int, Cut]) -> Local:
        of_x = {dim: spatial.part(dim, cut, of_x=True) for dim, cut in cuts.items()}
        of_weight = {dim: spatial.part(dim, cut, of_x=False) for dim, cut in cuts.items()}

        def local(grad: torch.Tensor, x: torch.Tensor, *args: Any) -> Any:
            rest = spatial.unpadded([grad, x, *args], 4, cuts)[2:-1]
            more_grad, more_x = rows([grad, x])
            results: list[Any] = [None] * 3
            if mask[0]:
                shape = list(x.shape)
                for dim, part in of_x.items():
                    more_grad = fitted(more_grad, dim, part.needs, part.block)
                    shape[dim] = part.made.size
                made = op(more_grad, x.new_empty(shape), *rest, [True, False, False])[0]
                for dim, part in of_x.items():
                    made = fitted(made, dim, part.made, part.own)
                results[0] = made
            if mask[1] or mask[2]:
                for dim, part in of_weight.items():
                    more_x = fitted(more_x, dim, part.needs, part.block)
                    grad = fitted(grad, dim, part.own, part.made)
                results[1:] = op(grad, more_x, *rest, [False, *mask[1:]])[1:]
            return tuple(results)

        return local

    outputs = (Partial(), Partial())[: sum(mask[1:])]
    for dim in spatial.windows:
        wants = {
            0: lambda cut, dim=dim: _needed(spatial.part(dim, cut, of_x=True), mask[0]),
            1: lambda cut, dim=dim: _needed(spatial.part(dim, cut, of_x=False), any(mask[1:])),
        }
        placements = (Shard(dim), *outputs) if mask[0] else outputs
        rule = exchanging_rows(rule, call, dim, wants, placements, run)
    return rule


def _needed(part: Part, wanted: bool) -> Extent:
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
