"""Convolutions: samples and output channels are cut freely, input channels leave addends.

x [n, i, s..], weight [o, i, k..] (transposed: [i, o, k..]), bias [o] -> [n, o, s..]. With groups
the channels are (group, channel of it), and groups are cut evenly. Spatial dims must be whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dtensor_core.rules.call import Call
from dtensor_core.rules.row import Row
from dtensor_core.rules.rule import Dim, Operand, Rule
from dtensor_core.spec import Spec

Local = Callable[..., Any]


def _factors(call: Call, x: Spec, weight: Spec) -> tuple[dict[str, Operand], dict[str, int]]:
    """Operands by role, and the sizes of the factors n, g, i, o."""
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
    return Rule(
        inputs=tuple(operands[role] for role in roles),
        outputs=(operands["out"],),
        sizes=sizes,
        blocked=_whole_within_groups(call),
        terms=((0, 1), (2,))[: len(call.specs) - 1],
        algebra="linear",
        local=_local_groups,
    )


def _backward(call: Call) -> Rule:
    """grad, x, weight -> grads of x, weight and bias, as far as they are wanted."""
    operands, sizes = _factors(call, call.specs[1], call.specs[2])
    mask = call.argument("output_mask")
    wanted = [role for role, each in zip(("x", "weight", "bias"), mask, strict=True) if each]
    return Rule(
        inputs=(operands["out"], operands["x"], operands["weight"]),
        outputs=tuple(operands[role] for role in wanted),
        sizes=sizes,
        # The bias has no input channel: every rank would have its whole gradient, not an addend.
        blocked=_whole_within_groups(call) | ({"i"} if mask[2] else set()),
        terms=((0,),),
        algebra="linear",
        local=_local_groups,
    )


def _whole_within_groups(call: Call) -> frozenset[str]:
    return frozenset("io" if int(call.argument("groups")) > 1 else "")


def _local_groups(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
    """The operator with the groups, and the size of the bias, that this rank has."""
    schema = [argument.name for argument in op._schema.arguments]  # pyright: ignore
    group_at = schema.index("groups")
    backward = "bias_sizes" in schema
    x, weight = inputs[1:3] if backward else inputs[:2]
    channels = x.ndim - (weight.ndim - 1)
    held, size = x.local_shape[channels], x.shape[channels]
    specs = [spec for spec in outputs if spec is not None]
    if any(0 in spec.local_shape and 0 not in spec.shape for spec in (*inputs, *specs)):
        return _gradients_of_nothing(specs) if backward else _result_of_nothing(specs[0], channels)

    def local(*args: Any, **kwargs: Any) -> Any:
        changed = list(args)
        if args[group_at] > 1 and held != size:
            changed[group_at] = args[group_at] * held // size
        if backward and args[3]:
            changed[3] = [inputs[0].local_shape[channels]]
        result = op(*changed, **kwargs)
        if not backward:
            return result
        return tuple(r if wanted else None for r, wanted in zip(result, args[-1], strict=True))

    return local


def _result_of_nothing(out: Spec, channels: int) -> Local:
    """What a rank without samples or channels has: its addend of the bias; kernels refuse that."""

    def local(x: torch.Tensor, weight: torch.Tensor, bias: Any, *unused: Any) -> torch.Tensor:
        made = x.new_zeros(out.local_shape)
        behind = [1] * (made.ndim - channels - 1)
        return made if bias is None else made.add_(bias.reshape(-1, *behind))

    return local


def _gradients_of_nothing(outputs: Sequence[Spec]) -> Local:
    def local(grad: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        made = iter([grad.new_zeros(spec.local_shape) for spec in outputs])
        return tuple(next(made) if wanted else None for wanted in args[-1])

    return local


ROWS = {
    "convolution": Row(_forward, "n (g i) s.., (g o) i k.. + (g o) -> n (g o) s.."),
    "convolution_backward": Row(
        _backward, "n (g o) s.., n (g i) s.., (g o) i k.. -> n (g i) s.., (g o) i k.., (g o)"
    ),
}
