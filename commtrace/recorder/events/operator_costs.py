"""FLOPs of operators that compute products, by torch's formulas and by those that it lacks.

A formula is given the shapes of tensors in their places. An operator without a formula is
elementwise, or moves data: its FLOPs are unknown, not zero. So are FLOPs that depend on what
tensors contain, such as the lengths of sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

_UNKNOWN = -1
_MOST = 1 << 62
_Shape = Sequence[int]
_aten: Any = torch.ops.aten


def flops_of(op: Any, args: Sequence[Any], kwargs: Any, result: Any) -> int:
    """Return the floating-point operations of an operator; -1 if they are unknown."""
    packet = op.overloadpacket
    formula = flop_registry.get(packet) or _FORMULAS.get(packet)
    if formula is None:
        return _UNKNOWN
    shapes, result_shapes = _shapes_in(args), _shapes_in(result)
    named = {name: _shapes_in(each) for name, each in (kwargs or {}).items()}
    # Torch's wrapper looks for tensors in all arguments, which takes longer than all else here.
    of_shapes = getattr(formula, "__wrapped__", None)
    named["out_val" if of_shapes is None else "out_shape"] = result_shapes
    try:
        number = (of_shapes or formula)(*shapes, **named)
    except Exception:  # tensors that it was not made for, or it needs their contents
        return _UNKNOWN
    return number if type(number) is int and 0 <= number <= _MOST else _UNKNOWN


def _shapes_in(given: Any) -> Any:
    if isinstance(given, torch.Tensor):
        return given.shape
    if type(given) in (list, tuple):
        return type(given)([_shapes_in(each) for each in given])
    return given


def _attention(query: _Shape, key: _Shape, value: _Shape, *_: Any, **__: Any) -> int:
    """Two products: of queries with keys, and of the weights with values; heads are shared."""
    *batches, length, size = query
    return 2 * prod(batches) * length * key[-2] * (size + value[-1])


def _attention_backward(
    gradient: _Shape, query: _Shape, key: _Shape, value: _Shape, *_: Any, **__: Any
) -> int:
    """Five products, as torch's formula for accelerators has: the weights are computed anew."""
    *batches, length, size = query
    return 2 * prod(batches) * length * key[-2] * (3 * size + 2 * value[-1])


def _grouped(left: _Shape, right: _Shape, *_: Any, **__: Any) -> int:
    """Products of groups: each row, or each column, of what the groups divide is in one of them."""
    num_groups = left[0] if len(left) == len(right) == 3 else 1
    return 2 * num_groups * left[-2] * left[-1] * right[-1]


def _vector(left: _Shape, *_: Any, **__: Any) -> int:
    """Return the FLOPs of a product with a vector: each element of the other is used once."""
    return 2 * prod(left)


def _added_vector(_: _Shape, left: _Shape, *__: Any, **___: Any) -> int:
    return 2 * prod(left)


def _added_batches(_: _Shape, left: _Shape, right: _Shape, *__: Any, **___: Any) -> int:
    return 2 * prod(left) * right[-1]


def _outer(left: _Shape, right: _Shape, *_: Any, **__: Any) -> int:
    return prod(left) * prod(right)


def _added_outer(_: _Shape, left: _Shape, right: _Shape, *__: Any, **___: Any) -> int:
    return 2 * prod(left) * prod(right)


def _linear(left: _Shape, weight: _Shape, *_: Any, **__: Any) -> int:
    return 2 * prod(left) * weight[0]


def _matmul(left: _Shape, _: _Shape, *__: Any, out_val: _Shape, **___: Any) -> int:
    return 2 * prod(out_val) * left[-1]


def _convolution(_: _Shape, weight: _Shape, *__: Any, out_val: _Shape, **___: Any) -> int:
    return 2 * prod(out_val) * prod(weight[1:])


def _matrices(left: _Shape, right: _Shape, *_: Any, **__: Any) -> int:
    return 2 * prod(left) * right[-1]


_NAMED: dict[str, Callable[..., int]] = {
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "_scaled_dot_product_fused_attention_overrideable": _attention,
    "_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
    "_grouped_mm": _grouped,
    "_scaled_grouped_mm": _grouped,
    "scaled_dot_product_attention": _attention,
    "linear": _linear,
    "mkldnn_linear": _linear,
    "matmul": _matmul,
    "conv1d": _convolution,
    "conv2d": _convolution,
    "conv3d": _convolution,
    "mv": _vector,
    "dot": _vector,
    "vdot": _vector,
    "addmv": _added_vector,
    "addbmm": _added_batches,
    "_addmm_activation": _added_batches,
    "_int_mm": _matrices,
    "outer": _outer,
    "ger": _outer,
    "addr": _added_outer,
}
"""Formulas of operators that torch has none for, by name; a release of torch may lack some.

In inference mode, operators such as `linear` are not split into others.
"""
_FORMULAS: dict[Any, Callable[..., int]] = {
    getattr(_aten, name): formula for name, formula in _NAMED.items() if hasattr(_aten, name)
}
