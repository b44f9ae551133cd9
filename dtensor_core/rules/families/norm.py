"""Normalisations: leading dimensions may be cut, normalised ones must be whole.

The gradients of weight and bias are sums over the leading dimensions, so they are addends where
one of those is cut.
"""

from __future__ import annotations

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


ROWS = {
    "native_layer_norm": Row(_layer_norm, "x.. n!, n!, n! -> x.. n!, x.. 1, x.. 1"),
    "native_layer_norm_backward": Row(
        _layer_norm_backward, "x.. n!, x.. n!, x.. 1, x.. 1, n!, n! -> x.. n!, n!, n!"
    ),
}
