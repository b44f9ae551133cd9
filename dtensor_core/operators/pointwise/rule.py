"""Elementwise operators: every dimension of the result may be sharded (`rules.elementwise`)."""

from __future__ import annotations

from dtensor_core.operators.rules.call import Call
from dtensor_core.operators.rules.elementwise import OPAQUE, pointwise
from dtensor_core.operators.rules.operands import factor_sizes, full_operand
from dtensor_core.operators.rules.row import Row
from dtensor_core.operators.rules.sharding_rule import ShardingRule

# (algebra, terms, operators)
_LINES = (
    (
        "linear",
        "0",
        "real conj_physical div divide true_divide logit_backward "
        # Gradients are linear in the gradient; the forward values are parameters.
        "gelu_backward threshold_backward silu_backward sigmoid_backward tanh_backward "
        "native_dropout_backward leaky_relu_backward elu_backward hardtanh_backward "
        "softplus_backward hardswish_backward mish_backward hardshrink_backward "
        "softshrink_backward hardsigmoid_backward",
    ),
    ("linear increasing", "0", "positive deg2rad rad2deg"),
    ("linear decreasing", "0", "neg"),
    ("linear increasing", "0+1", "add"),
    ("linear", "0+1", "complex sub subtract lerp addcdiv"),
    ("linear", "0*1", "mul multiply"),
    ("linear", "0+1*2", "addcmul"),
    ("structural", "1+2", "where"),
    ("max increasing", "0+1", "maximum"),
    ("min increasing", "0+1", "minimum"),
    ("increasing", "0*1", "logaddexp logaddexp2 clamp_min clamp_max"),
    ("increasing", "0*1*2", "clamp"),
    ("decreasing", "0", "erfc"),
    (
        "increasing",
        "0",
        # Monotone on all numbers: a partial value of a maximum may be any smaller number.
        "relu exp exp2 expm1 sigmoid tanh sinh asinh atan erf ceil floor round trunc sign sgn "
        "hardtanh relu6 hardshrink softshrink hardsigmoid special_log_ndtr",
    ),
)


def _gated(call: Call) -> ShardingRule:
    """Product of the two halves of `dim`, or its gradient; both halves are sharded alike."""
    x = call.argument("self")
    dim = call.argument("dim", -1) % x.ndim
    full = full_operand(x.shape)
    halves = (*full[:dim], ("half", *full[dim]), *full[dim + 1 :])
    return ShardingRule(
        inputs=tuple(halves if spec.shape == x.shape else full for spec in call.specs),
        outputs=tuple(halves if meta.shape == x.shape else full for meta in call.outputs),
        sizes={**factor_sizes(x.shape), f"d{dim}": x.shape[dim] // 2, "half": 2},
        blocked=frozenset(("half",)),
    )


# Elementwise operators without torch's tag.
_OPAQUE = (
    "hardswish floor_divide log_sigmoid_forward log_sigmoid_backward _prelu_kernel "
    "_prelu_kernel_backward polar"
)

ROWS = {
    name: pointwise(terms, algebra) for algebra, terms, names in _LINES for name in names.split()
}
ROWS |= {name: OPAQUE for name in _OPAQUE.split()}
ROWS["rsub"] = pointwise("0+1", "linear")
# Fused optimizer updates of a parameter, its gradient and state; unscaling of a gradient.
_FUSED = "_fused_adam _fused_adamw _fused_sgd _fused_adagrad"
ROWS |= {name: OPAQUE for name in [*_FUSED.split(), "_amp_foreach_non_finite_check_and_unscale"]}
ROWS |= {name: Row(_gated, "x.. (2! d) -> x.. d") for name in ("glu", "glu_backward")}
