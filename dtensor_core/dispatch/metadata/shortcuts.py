"""Metadata of the results of operators that models consist of, without a meta kernel.

Invariant: a shortcut and the meta kernel agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from dtensor_core.dispatch.arguments import Args, Kwargs, flattened
from dtensor_core.layout import contiguous_stride
from dtensor_core.spec import Spec, TensorMeta
from dtensor_core.torch_internals.dispatcher import OpOverload

Metas = tuple[TensorMeta, ...]

# Elementwise, with results of the dtype of their arguments if that is floating-point.
_ELEMENTWISE = (
    "add sub mul div neg abs reciprocal sqrt rsqrt exp log sin cos tanh sigmoid relu gelu silu "
    "pow maximum minimum lerp addcmul addcdiv threshold_backward gelu_backward silu_backward "
    "sigmoid_backward tanh_backward"
)
_OPTIONS = frozenset(("alpha", "approximate", "value", "rounding_mode"))
_FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_GROUPED_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def copies_sizes(op: OpOverload, args: Args, kwargs: Kwargs) -> bool:
    """True if the sizes of the results are 1 or sizes of the arguments.

    The choice of argument depends only on which sizes are equal to each other, to 0 or to 1.
    Results are contiguous, except that views permute the strides of their argument.
    """
    if is_permuting(op):
        return True
    shortcut = _SHORTCUTS.get(base_name(op))
    return shortcut not in (None, *_NEW_SIZES) and shortcut_metadata(op, args, kwargs) is not None


def is_permuting(op: OpOverload) -> bool:
    """True for views of all elements, in the same or another order."""
    return op._schema.name in _PERMUTING


def shortcut_metadata(op: OpOverload, args: Args, kwargs: Kwargs) -> Metas | None:
    """Return the metadata from a shortcut, or None if none applies."""
    name = op._schema.name
    shortcut = _SHORTCUTS.get(base_name(op))
    if shortcut is not None and kwargs.keys() <= _OPTIONS:
        specs = [value for value in flattened(args, {}) if isinstance(value, Spec)]
        is_supported = _LAYOUT_CHECKS.get(shortcut, _is_contiguous)
        if _have_one_type(specs) and all(map(is_supported, specs)):
            found = shortcut(specs, args)
            is_inplace = name.endswith("_")
            # A shape that changes in place is left to the meta kernel, which refuses it.
            if found is not None and (not is_inplace or found[0] == specs[0].tensor_meta):
                return found
    return None


@lru_cache(maxsize=4096)
def base_name(op: OpOverload) -> str:
    """Return the name that an operator and its in-place form share."""
    return op._schema.name.removeprefix("aten::").removesuffix("_")


def _have_one_type(specs: Sequence[Spec]) -> bool:
    """True if all arguments but masks and indices share a floating-point dtype."""
    dtypes = {spec.dtype for spec in specs} - {torch.bool, torch.int32, torch.int64}
    return len(dtypes) == 1 and dtypes.pop() in _FLOATING


def _is_contiguous(spec: Spec) -> bool:
    return spec.stride == contiguous_stride(spec.shape)


def _is_contiguous_or_one_value(spec: Spec) -> bool:
    return not any(spec.stride) or _is_contiguous(spec)


def _is_any(spec: Spec) -> bool:
    return True


def contiguous(shape: Sequence[int], dtype: torch.dtype) -> TensorMeta:
    """Return the metadata of a contiguous tensor."""
    return TensorMeta(torch.Size(shape), contiguous_stride(shape), dtype)


def _elementwise(specs: Sequence[Spec], args: Args) -> Metas | None:
    """Metadata of the largest argument, if the others broadcast to it."""
    if any(spec.dtype is not specs[0].dtype for spec in specs) or complex in map(type, args):
        return None
    return _broadcast(specs, specs[0].dtype)


def _comparison(specs: Sequence[Spec], args: Args) -> Metas | None:
    if any(spec.dtype is not specs[0].dtype for spec in specs) or complex in map(type, args):
        return None
    return _broadcast(specs, torch.bool)


def _where(specs: Sequence[Spec], args: Args) -> Metas | None:
    if [spec.dtype is torch.bool for spec in specs] != [True, False, False]:
        return None
    return _broadcast(specs, specs[1].dtype)


def _masked_fill(specs: Sequence[Spec], args: Args) -> Metas | None:
    """In place or not, metadata of the first argument if the mask broadcasts to it."""
    if [spec.dtype is torch.bool for spec in specs] != [False, True] or type(args[2]) is complex:
        return None
    return _broadcast(specs, specs[0].dtype)


def _broadcast(specs: Sequence[Spec], dtype: torch.dtype) -> Metas | None:
    largest = max(specs, key=lambda spec: (spec.ndim, spec.shape.numel()))
    for spec in specs:
        trailing = largest.shape[largest.ndim - spec.ndim :]
        if any(size not in (1, full) for size, full in zip(spec.shape, trailing, strict=True)):
            return None
    return (contiguous(largest.shape, dtype),)


def _softmax(specs: Sequence[Spec], args: Args) -> Metas | None:
    spec, dim, to_float = args
    if to_float or not -spec.ndim <= dim < spec.ndim:
        return None
    return (spec.tensor_meta,)


def _softmax_backward(specs: Sequence[Spec], args: Args) -> Metas | None:
    grad, output, _, dtype = args
    if grad.shape != output.shape or dtype is not grad.dtype:
        return None
    return (grad.tensor_meta,)


def _dropout(specs: Sequence[Spec], args: Args) -> Metas | None:
    meta = specs[0].tensor_meta
    return meta, meta._replace(dtype=torch.bool)


def _reduced(specs: Sequence[Spec], args: Args) -> Metas | None:
    """Without `dim`, or if it is empty, all dims are reduced."""
    (spec,) = specs
    given = args[1] if len(args) > 1 and args[1] else range(spec.ndim)
    if any(not -spec.ndim <= dim < spec.ndim for dim in given):
        return None
    dims = {dim % spec.ndim for dim in given}
    keep = len(args) > 2 and args[2]
    shape = [1 if dim in dims else size for dim, size in enumerate(spec.shape)]
    kept = shape if keep else [size for dim, size in enumerate(shape) if dim not in dims]
    return (contiguous(kept, spec.dtype),)


def _cat(specs: Sequence[Spec], args: Args) -> Metas | None:
    first, dim = specs[0], args[1] if len(args) > 1 else 0
    if not -first.ndim <= dim < first.ndim or any(s.dtype is not first.dtype for s in specs):
        return None
    dim %= first.ndim
    rest = [(*spec.shape[:dim], *spec.shape[dim + 1 :]) for spec in specs]
    if any(each != rest[0] for each in rest) or any(s.ndim != first.ndim for s in specs):
        return None
    shape = (*first.shape[:dim], sum(s.shape[dim] for s in specs), *first.shape[dim + 1 :])
    return (contiguous(shape, first.dtype),)


def _layer_norm(specs: Sequence[Spec], args: Args) -> Metas | None:
    """The result, then mean and rstd of the normalized dims."""
    spec, normed = args[0], tuple(args[1])
    leading = spec.ndim - len(normed)
    if leading < 0 or tuple(spec.shape[leading:]) != normed or 0 in spec.shape:
        return None
    # The dtype of half-precision moments depends on the device: see `_layer_norm_moments`.
    if any(tuple(each.shape) != normed for each in specs[1:]) or spec.dtype.itemsize < 4:
        return None
    moments = contiguous((*spec.shape[:leading], *(1 for _ in normed)), spec.dtype)
    return spec.tensor_meta, moments, moments


def _layer_norm_backward(specs: Sequence[Spec], args: Args) -> Metas | None:
    """Gradients of the input, the weight and the bias, as requested."""
    grad, spec, _, _, _, weight, bias, wanted = args
    if grad.shape != spec.shape or 0 in spec.shape or spec.dtype.itemsize < 4:
        return None
    requested = [
        each for each, is_wanted in zip((spec, weight, bias), wanted, strict=True) if is_wanted
    ]
    return tuple(each.tensor_meta for each in requested) if None not in requested else None


def _product(specs: Sequence[Spec], args: Args) -> Metas | None:
    """Product of matrices, or of equally large batches of them."""
    left, right = specs
    if left.ndim != right.ndim or left.shape[:-2] != right.shape[:-2]:
        return None
    if left.dtype is not right.dtype or left.shape[-1] != right.shape[-2]:
        return None
    return (contiguous((*left.shape[:-1], right.shape[-1]), left.dtype),)


def _addmm(specs: Sequence[Spec], args: Args) -> Metas | None:
    if len(specs) != 3:
        return None
    bias, left, right = specs
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[0]:
        return None
    shape = (left.shape[0], right.shape[1])
    return (contiguous(shape, left.dtype),) if tuple(bias.shape) in (shape, shape[1:]) else None


def _grouped_product(specs: Sequence[Spec], args: Args) -> Metas | None:
    """[m, n] of each group, or of all rows; each row starts at a multiple of 16 bytes.

    The kernel supports three floating-point dtypes; its meta kernel supports only bfloat16 and
    reports no padding.
    """
    left, right, *rest = specs
    dtype = left.dtype
    if dtype not in _GROUPED_TYPES or right.dtype is not dtype:
        return None
    if any(each not in (None, dtype) for each in args[3:]):  # a bias, or another result dtype
        return None
    if not {left.ndim, right.ndim} <= {2, 3} or left.shape[-1] != right.shape[-2]:
        return None
    if len(rest) != (left.ndim + right.ndim < 6):
        return None
    groups = {(3, 3): left.shape[:1], (2, 2): rest[0].shape if rest else ()}
    m, n = left.shape[-2], right.shape[-1]
    shape = (*groups.get((left.ndim, right.ndim), ()), m, n)
    width = math.ceil(n * dtype.itemsize / 16) * 16 // dtype.itemsize
    return (TensorMeta(torch.Size(shape), contiguous_stride((*shape[:-1], width)), dtype),)


Shortcut = Callable[[Sequence[Spec], Sequence[Any]], Metas | None]

# Each assumes arguments of one floating-point dtype, contiguous except those of `_LAYOUT_CHECKS`.
_SHORTCUTS: dict[str, Shortcut] = {
    **dict.fromkeys(_ELEMENTWISE.split(), _elementwise),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), _comparison),
    "where": _where,
    "masked_fill": _masked_fill,
    "_softmax": _softmax,
    "_log_softmax": _softmax,
    "_softmax_backward_data": _softmax_backward,
    "_log_softmax_backward_data": _softmax_backward,
    "native_dropout": _dropout,
    "mean": _reduced,
    "sum": _reduced,
    "cat": _cat,
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "mm": _product,
    "bmm": _product,
    "addmm": _addmm,
    "_grouped_mm": _grouped_product,
}
_PERMUTING = frozenset(
    ("aten::detach", "aten::alias", "aten::t", "aten::transpose", "aten::permute")
)
# These give sizes that are sums, or numbers among the arguments.
_NEW_SIZES = (_cat, _layer_norm, _layer_norm_backward, _grouped_product)
_LAYOUT_CHECKS: dict[Any, Callable[[Spec], bool]] = {
    _elementwise: _is_contiguous_or_one_value,
    _product: _is_any,
    _addmm: _is_any,
    _grouped_product: _is_any,
}
