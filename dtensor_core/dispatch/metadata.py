"""Global metadata of an operator's results (shape, stride, dtype), from that of its arguments.

torch's meta kernels cover all operators. But many are written in Python, take up to a millisecond,
and load torch._dynamo, which takes seconds. The operators that models consist of are therefore
handled here if their arguments are contiguous and of one floating-point dtype; for everything else
the meta kernel is called, once for all layouts. Invariant: the shortcut and the meta kernel agree.
Used by `make_entry` and `lists`, for a new call. The file is long because it is one table of
shortcuts with its functions.
"""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch

from dtensor_core.dispatch.arguments import Args, Kwargs, converted, flattened
from dtensor_core.layout import contiguous_stride
from dtensor_core.operators.call import argument_names
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
_NAN_TO_NUM_IN_PLACE = torch.ops.aten.nan_to_num_.default
_FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_GROUPED_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def output_metadata(op: OpOverload, args: Args, kwargs: Kwargs) -> Metas | None:
    """Return the metadata of the tensors that a call returns; None if it depends on data.

    `args` and `kwargs` hold specs for tensors.
    """
    if op is _NAN_TO_NUM_IN_PLACE:  # its meta kernel does not support complex numbers
        return (args[0].tensor_meta,)
    found = _worked_out(op, args, kwargs)
    if found is None:
        found = _remembered(op, args, kwargs)
        if found is None and _base_name(op) in _LIKE_INPUT:
            values = dict(zip(argument_names(op), args, strict=False)) | dict(kwargs)
            return (_contiguous(values["self"].shape, values["self"].dtype),)
        mend = _MENDED.get(_base_name(op))
        if mend is not None and found is not None:
            return mend(op, found, args, kwargs)
    return found


def _batch_norm_moments(op: OpOverload, metas: Metas, args: Args, kwargs: Kwargs) -> Metas:
    """Correct saved moments: none with running stats, and on CPU in the input's dtype."""
    given = dict(zip(argument_names(op), args, strict=False)) | dict(kwargs)
    x, *parameters = [value for value in given.values() if isinstance(value, Spec)]
    dtype = metas[1].dtype
    if x.mesh.device_type == "cpu" and all(each.dtype is x.dtype for each in parameters):
        dtype = x.dtype
    training = given.get("training", "with_update" in op._schema.name)
    moments = _contiguous(metas[1].shape if training else (0,), dtype)
    running = (
        _contiguous(each.shape, dtype) for each in metas[3:] if each.dtype is not torch.uint8
    )
    reserve = (each for each in metas[3:] if each.dtype is torch.uint8)
    return (metas[0], moments, moments, *reserve, *running)


def _layer_norm_moments(op: OpOverload, metas: Metas, args: Args, kwargs: Kwargs) -> Metas:
    """Correct saved moments: on CPU in the input's dtype, unless the weights are wider."""
    x, *parameters = [value for value in flattened(args, kwargs) if isinstance(value, Spec)]
    if x.mesh.device_type != "cpu" or any(each.dtype is not x.dtype for each in parameters):
        return metas
    return (metas[0], *(each._replace(dtype=x.dtype) for each in metas[1:]))


def _batch_norm_gradients(op: OpOverload, metas: Metas, args: Args, kwargs: Kwargs) -> Metas:
    """Drop unwanted results: the meta kernel always returns a gradient of the input first."""
    given = dict(zip(argument_names(op), args, strict=False)) | dict(kwargs)
    return metas[len(metas) - sum(given["output_mask"]) :]


def _column_major(index: int) -> Callable[..., Metas]:
    """Matrices of one result are column-major on CPU, as LAPACK leaves them."""

    def mended(op: OpOverload, metas: Metas, args: Args, kwargs: Kwargs) -> Metas:
        shape, _, dtype = metas[index]
        if args[0].mesh.device_type != "cpu" or len(shape) < 2:
            return metas
        *batch, rows, columns = contiguous_stride((*shape[:-2], shape[-1], shape[-2]))
        made = TensorMeta(shape, (*batch, columns, rows), dtype)
        return (*metas[:index], made, *metas[index + 1 :])

    return mended


# Corrections for operators whose kernels disagree with their meta kernels.
_BATCH_NORMS = (
    "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training "
    "_native_batch_norm_legit_functional _batch_norm_with_update "
    "_batch_norm_with_update_functional _batch_norm_no_update"
)
_MENDED: dict[str, Callable[..., Metas]] = {
    **dict.fromkeys(_BATCH_NORMS.split(), _batch_norm_moments),
    "native_layer_norm": _layer_norm_moments,
    "native_batch_norm_backward": _batch_norm_gradients,
    "batch_norm_backward": _batch_norm_gradients,
    "_linalg_svd": _column_major(2),
    "linalg_eig": _column_major(1),
}


# Reductions without a neutral element whose meta kernels accept empty tensors.
_WITHOUT_IDENTITY = frozenset((torch.ops.aten.max.default, torch.ops.aten.min.default))


def copies_sizes(op: OpOverload, args: Args, kwargs: Kwargs) -> bool:
    """True if the sizes of the results are 1 or sizes of the arguments.

    The choice of argument depends only on which sizes are equal to each other, to 0 or to 1.
    Results are contiguous; those of a view have the strides of its argument, in some order.
    """
    if op._schema.name in _PERMUTING:
        return True
    shortcut = _SHORTCUTS.get(_base_name(op))
    return shortcut not in (None, *_NEW_SIZES) and _worked_out(op, args, kwargs) is not None


def _worked_out(op: OpOverload, args: Args, kwargs: Kwargs) -> Metas | None:
    """Return the metadata from a shortcut, or None if none applies."""
    name = op._schema.name
    shortcut = _SHORTCUTS.get(_base_name(op))
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
def _base_name(op: OpOverload) -> str:
    """Return the name that an operator and its in-place form share."""
    return op._schema.name.removeprefix("aten::").removesuffix("_")


def _have_one_type(specs: Sequence[Spec]) -> bool:
    """True if all arguments but masks and indices have one common floating-point dtype."""
    dtypes = {spec.dtype for spec in specs} - {torch.bool, torch.int32, torch.int64}
    return len(dtypes) == 1 and dtypes.pop() in _FLOATING


def _is_contiguous(spec: Spec) -> bool:
    return spec.stride == contiguous_stride(spec.shape)


def _is_contiguous_or_one_value(spec: Spec) -> bool:
    return not any(spec.stride) or _is_contiguous(spec)


def _is_any(spec: Spec) -> bool:
    return True


def _contiguous(shape: Sequence[int], dtype: torch.dtype) -> TensorMeta:
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
    return (_contiguous(largest.shape, dtype),)


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
    """Without `dim`, or with an empty one, all dims are reduced."""
    (spec,) = specs
    given = args[1] if len(args) > 1 and args[1] else range(spec.ndim)
    if any(not -spec.ndim <= dim < spec.ndim for dim in given):
        return None
    dims = {dim % spec.ndim for dim in given}
    keep = len(args) > 2 and args[2]
    shape = [1 if dim in dims else size for dim, size in enumerate(spec.shape)]
    kept = shape if keep else [size for dim, size in enumerate(shape) if dim not in dims]
    return (_contiguous(kept, spec.dtype),)


def _cat(specs: Sequence[Spec], args: Args) -> Metas | None:
    first, dim = specs[0], args[1] if len(args) > 1 else 0
    if not -first.ndim <= dim < first.ndim or any(s.dtype is not first.dtype for s in specs):
        return None
    dim %= first.ndim
    rest = [(*spec.shape[:dim], *spec.shape[dim + 1 :]) for spec in specs]
    if any(each != rest[0] for each in rest) or any(s.ndim != first.ndim for s in specs):
        return None
    shape = (*first.shape[:dim], sum(s.shape[dim] for s in specs), *first.shape[dim + 1 :])
    return (_contiguous(shape, first.dtype),)


def _layer_norm(specs: Sequence[Spec], args: Args) -> Metas | None:
    """The result, then mean and rstd of the normalized dims."""
    spec, normed = args[0], tuple(args[1])
    leading = spec.ndim - len(normed)
    if leading < 0 or tuple(spec.shape[leading:]) != normed or 0 in spec.shape:
        return None
    # The dtype of half-precision moments depends on the device: see `_layer_norm_moments`.
    if any(tuple(each.shape) != normed for each in specs[1:]) or spec.dtype.itemsize < 4:
        return None
    moments = _contiguous((*spec.shape[:leading], *(1 for _ in normed)), spec.dtype)
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
    return (_contiguous((*left.shape[:-1], right.shape[-1]), left.dtype),)


def _addmm(specs: Sequence[Spec], args: Args) -> Metas | None:
    if len(specs) != 3:
        return None
    bias, left, right = specs
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[0]:
        return None
    shape = (left.shape[0], right.shape[1])
    return (_contiguous(shape, left.dtype),) if tuple(bias.shape) in (shape, shape[1:]) else None


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
# Gradients of `self` that have no meta kernel.
_LIKE_INPUT = {
    *("multi_margin_loss_backward", "multilabel_margin_loss_backward"),
    "fractional_max_pool3d_backward",
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


_MOST_REMEMBERED = 16384
_results: dict[Hashable, Metas] = {}
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def _remembered(op: OpOverload, args: Args, kwargs: Kwargs) -> Metas | None:
    """Return the metadata of the meta kernel, which is called once for equal metadata of arguments.

    Layouts and meshes do not matter to it, so a call in another layout needs no further one.
    """
    if op.namespace != "aten":  # others' kernels may be registered anew
        return _by_kernel(op, args, kwargs)
    try:
        key = (op, torch.get_default_dtype(), _key(args), *map(_named_key, kwargs.items()))
        found = _results.get(key)
    except TypeError:
        return _by_kernel(op, args, kwargs)
    if found is None:
        found = _by_kernel(op, args, kwargs)
        if found is not None:
            if len(_results) >= _MOST_REMEMBERED:
                _results.clear()
            _results[key] = found
    return found


def _named_key(item: tuple[str, Any]) -> Hashable:
    name, value = item
    return name, None if name == "generator" else _key(value)


def _key(value: Any) -> Hashable:
    """Return what equals that of another argument only if kernels treat both alike.

    Raises:
        TypeError: There is no such thing: for a tensor, and for a symbol of a graph.
    """
    if isinstance(value, Spec):
        return value.tensor_meta
    if isinstance(value, (list, tuple)):
        return tuple([_key(each) for each in value])
    if isinstance(value, (torch.Tensor, *_SYMBOLIC)):
        raise TypeError(f"{type(value)} has no key")
    return type(value), value  # 1, 1.0 and True are equal


def _by_kernel(op: OpOverload, args: Args, kwargs: Kwargs) -> Metas | None:
    """Return the metadata according to the operator's meta kernel.

    For tensors without elements the meta kernel may accept calls that no device accepts, or refuse
    calls that devices accept, with errors of any type (some divide by a number of elements); then
    the CPU kernel is run.
    """
    specs = [value for value in flattened(args, kwargs) if isinstance(value, Spec)]
    empty = [0 in spec.shape for spec in specs]
    try:
        if empty and all(empty) and op in _WITHOUT_IDENTITY:
            _on("cpu", op, args, kwargs)
        result = _on("meta", op, args, kwargs)
    except NotImplementedError:
        return None
    except Exception as error:
        if _reads_data(op, error):
            return None
        if not any(empty):
            raise
        result = _on("cpu", op, args, kwargs)
    several = result if isinstance(result, (list, tuple)) else (result,)
    return tuple(
        TensorMeta(each.shape, each.stride(), each.dtype)
        for each in flattened(several, {})
        if isinstance(each, torch.Tensor)
    )


def _on(device: str, op: OpOverload, args: Args, kwargs: Kwargs) -> torch.Tensor | Sequence[Any]:
    """Run a call on tensors of a device, without data, and return its result."""
    made, named = converted(Spec, partial(_without_data, device), args, kwargs)
    if "device" in named:
        named["device"] = device
    if "generator" in named:  # nothing is drawn here, and some meta kernels refuse one
        named["generator"] = None
    return _INSTEAD.get(op, op)(*made, **named)


def _reshaped_copy(tensor: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    return tensor.reshape(size).contiguous()


# Replacements for meta kernels that accept less than devices do.
_INSTEAD: dict[OpOverload, Callable[..., torch.Tensor]] = {
    torch.ops.aten.view_copy.default: _reshaped_copy,
}


def _reads_data(op: OpOverload, error: BaseException) -> bool:
    """True if a kernel failed because its result depends on data that was not available.

    Such operators are tagged, or read a tensor's value. The error of the latter has no type of its
    own and is recognised by the function that raises it.
    """
    if torch.Tag.dynamic_output_shape in op.tags or torch.Tag.data_dependent_output in op.tags:
        return True
    asking = getattr(sys.modules.get("torch._meta_registrations"), "meta_local_scalar_dense", None)
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return asking is not None and frame.f_code is asking.__code__


def as_meta(spec: Spec) -> torch.Tensor:
    """Make a meta tensor with a spec's global metadata."""
    return _without_data("meta", spec)


def _without_data(device: str, spec: Spec) -> torch.Tensor:
    return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=device)
