"""Normalisations: leading dimensions may be cut, normalised ones must be whole.

The gradients of weight and bias are sums over the leading dimensions, so they are addends where
one of those is cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from dtensor_core.rules.call import Call
from dtensor_core.rules.families.pointwise import factor_sizes, full_operand
from dtensor_core.rules.row import Row
from dtensor_core.rules.rule import Operand, Rule
from dtensor_core.spec import Spec


def _layer_norm(call: Call) -> Rule:
    """x, weight?, bias? -> y, mean, rstd."""
    shape = call.specs[0].shape
    leading = len(shape) - len(call.argument("normalized_shape"))
    whole, statistics = full_operand(shape), _statistics(shape, leading)
    return Rule(
        inputs=(whole, *((whole[leading:],) * (len(call.specs) - 1))),
        outputs=(whole, statistics, statistics),
        sizes=factor_sizes(shape),
        blocked=frozenset(f"d{dim}" for dim in range(leading, len(shape))),
    )


def _layer_norm_backward(call: Call) -> Rule:
    """grad, x, mean, rstd, weight?, bias? -> grad_x?, grad_weight?, grad_bias?."""
    shape = call.specs[1].shape
    leading = len(shape) - len(call.argument("normalized_shape"))
    whole, statistics = full_operand(shape), _statistics(shape, leading)
    parameters = [
        whole[leading:] for name in ("weight", "bias") if isinstance(call.argument(name), Spec)
    ]
    results = (whole, whole[leading:], whole[leading:])
    mask = call.argument("output_mask")
    return Rule(
        inputs=(whole, whole, statistics, statistics, *parameters),
        outputs=tuple(result for result, wanted in zip(results, mask, strict=True) if wanted),
        sizes=factor_sizes(shape),
        blocked=frozenset(f"d{dim}" for dim in range(leading, len(shape))),
    )


def _statistics(shape: tuple[int, ...], leading: int) -> Operand:
    """Mean and reciprocal deviation have size 1 in the normalised dimensions."""
    return full_operand(shape)[:leading] + ((),) * (len(shape) - leading)


def _weight_norm(call: Call) -> Rule:
    """A weight over its norm, and gradients: cut along `dim`, in which each slice has one norm."""
    shape = call.specs[0].shape
    dim = call.argument("dim", 0) % len(shape)
    each = tuple((f"d{dim}",) if number == dim else () for number in range(len(shape)))

    def operand(other: Sequence[int]) -> Operand:
        return full_operand(shape) if tuple(other) == tuple(shape) else each

    return Rule(
        inputs=tuple(operand(spec.shape) for spec in call.specs),
        outputs=tuple(operand(meta.shape) for meta in call.outputs),
        sizes=factor_sizes(shape),
        blocked=frozenset(f"d{number}" for number in range(len(shape)) if number != dim),
    )


ROWS = {
    "_weight_norm_interface": Row(_weight_norm, "dim may be cut"),
    "_weight_norm_interface_backward": Row(_weight_norm, "dim may be cut"),
    "native_layer_norm": Row(_layer_norm, "x.. n!, n!, n! -> x.. n!, x.. 1, x.. 1"),
    "native_layer_norm_backward": Row(
        _layer_norm_backward, "x.. n!, x.. n!, x.. 1, x.. 1, n!, n! -> x.. n!, n!, n!"
    ),
}
