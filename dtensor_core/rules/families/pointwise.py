"""Elementwise operators with broadcasting: every dimension of the result may be sharded.

A row's `terms` state how the result depends on the arguments by position: `0+1` a sum, `0*1` a
product, `1+2` a sum of arguments 1 and 2 with the others as parameters. That decides which Partials
pass; monotone operators pass max and min.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from dtensor_core.rules.call import Call
from dtensor_core.rules.row import Row
from dtensor_core.rules.rule import Operand, Rule


def operand_of(shape: Sequence[int], out_shape: Sequence[int]) -> Operand:
    """Return the operand of an argument broadcast to `out_shape`, whose dims are d0, d1, ..."""
    first = len(out_shape) - len(shape)
    return tuple(
        () if size == 1 and out_shape[first + dim] != 1 else (f"d{first + dim}",)
        for dim, size in enumerate(shape)
    )


def full_operand(shape: Sequence[int]) -> Operand:
    """Return the operand with one factor per dimension."""
    return _one_factor_each(len(shape))


@lru_cache(maxsize=64)
def _one_factor_each(ndim: int) -> Operand:
    return tuple((f"d{dim}",) for dim in range(ndim))


def factor_sizes(shape: Sequence[int]) -> dict[str, int]:
    """Return the sizes of the factors of `full_operand`."""
    return {name: size for (name,), size in zip(full_operand(shape), shape, strict=True)}


def pointwise(terms: str = "", algebra: str = "opaque") -> Row:
    """Make a row for an elementwise operator; see the module for `terms`."""
    wanted = [[int(position) for position in term.split("*")] for term in terms.split("+") if term]

    def build(call: Call) -> Rule:
        shape = call.outputs[0].shape
        numbers = [
            tuple(n for position in term if (n := call.number_at(position)) is not None)
            for term in wanted
        ]
        words = algebra if call.argument("rounding_mode") is None else "opaque"
        if not all(numbers):  # a term without a tensor is a constant
            words = words.replace("linear", "affine")
        if call.outputs[0].dtype.is_complex:  # complex numbers have no order
            words = words.replace("structural", "linear").replace("increasing", "")
        elif _subtracts(call):
            words = words.replace("increasing", "")
        return Rule(
            inputs=tuple(operand_of(spec.shape, shape) for spec in call.specs),
            outputs=tuple(
                full_operand(shape) if meta.shape == shape else ((),) * len(meta.shape)
                for meta in call.outputs
            ),
            sizes=factor_sizes(shape),
            terms=tuple(filter(None, numbers)),
            algebra=words,
        )

    return Row(build, "elementwise", algebra, tuple(map(tuple, wanted)))


def _subtracts(call: Call) -> bool:
    """True if alpha reverses the order; read only if needed, as it then is part of the key."""
    placements = {placement for spec in call.specs for placement in spec.placements}
    if not any(each.is_partial("max") or each.is_partial("min") for each in placements):
        return False
    alpha = call.argument("alpha", 1)
    return isinstance(alpha, complex) or alpha < 0


OPAQUE = pointwise()

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


def _gated(call: Call) -> Rule:
    """Product of the two halves of `dim`, or its gradient; both halves are sharded alike."""
    x = call.argument("self")
    dim = call.argument("dim", -1) % x.ndim
    whole = full_operand(x.shape)
    halves = (*whole[:dim], ("half", *whole[dim]), *whole[dim + 1 :])
    return Rule(
        inputs=tuple(halves if spec.shape == x.shape else whole for spec in call.specs),
        outputs=tuple(halves if meta.shape == x.shape else whole for meta in call.outputs),
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
