"""Corrections of what meta kernels report, for operators whose kernels do otherwise.

Most concern strides of results of tensors that are not contiguous, which a meta kernel in Python
orders in another way, and most of those only the CPU. Used by `output_metadata`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from dtensor_core.dispatch.arguments import Args, Kwargs, flattened
from dtensor_core.dispatch.metadata.shortcuts import Metas, base_name, contiguous
from dtensor_core.layout import contiguous_stride
from dtensor_core.operators.rules.call import argument_names
from dtensor_core.spec import Spec, TensorMeta
from dtensor_core.torch_internals.dispatcher import OpOverload

Mend = Callable[[OpOverload, Metas, Args, Kwargs], Metas]


def as_on_device(op: OpOverload, metas: Metas, args: Args, kwargs: Kwargs) -> Metas:
    """Return the metadata of results as the kernel makes them, given the meta kernel's.

    In place there is nothing to correct.
    """
    if op._schema.name.endswith("_"):
        return metas
    for name in (str(op).removeprefix("aten."), base_name(op)):
        mend = _MENDED.get(name)
        if mend is None and name in _MENDED_ON_CPU and _is_on_cpu(args, kwargs):
            mend = _MENDED_ON_CPU[name]
        if mend is not None:
            return mend(op, metas, args, kwargs)
    return metas


def _is_on_cpu(args: Args, kwargs: Kwargs) -> bool:
    specs = (value for value in flattened(args, kwargs) if isinstance(value, Spec))
    return next(specs).mesh.device_type == "cpu"


def _batch_norm_moments(op: OpOverload, metas: Metas, args: Args, kwargs: Kwargs) -> Metas:
    """Correct saved moments: none with running stats, and on CPU in the input's dtype."""
    given = dict(zip(argument_names(op), args, strict=False)) | dict(kwargs)
    x, *parameters = [value for value in given.values() if isinstance(value, Spec)]
    dtype = metas[1].dtype
    if x.mesh.device_type == "cpu" and all(each.dtype is x.dtype for each in parameters):
        dtype = x.dtype
    training = given.get("training", "with_update" in op._schema.name)
    moments = contiguous(metas[1].shape if training else (0,), dtype)
    running = (contiguous(each.shape, dtype) for each in metas[3:] if each.dtype is not torch.uint8)
    reserve = (each for each in metas[3:] if each.dtype is torch.uint8)
    return (_in_format_of(x, metas[0]), moments, moments, *reserve, *running)


def _in_format_of(x: Spec, result: TensorMeta) -> TensorMeta:
    """Return the metadata on CPU: contiguous, or channels last as the input."""
    if x.mesh.device_type != "cpu":
        return result
    memory_format = _CHANNELS_LAST.get(len(x.shape), torch.contiguous_format)
    is_last = as_meta(x).is_contiguous(memory_format=memory_format)
    return _with_channels(result, last=is_last)


def _in_order_of_input(op: OpOverload, metas: Metas, args: Args, kwargs: Kwargs) -> Metas:
    """Return the metadata with channels last if the input's strides have that order.

    Its elements need not be adjacent, unlike in `_in_format_of`. Source: suggest_memory_format in
    c10/core/TensorImpl.h.
    """
    is_last = _has_channels_last(args[0])
    return tuple(_with_channels(each, last=is_last) for each in metas)


def _has_channels_last(x: Spec) -> bool:
    """Return whether the strides order channels last, adjacent or not."""
    shape, stride = x.shape, x.stride
    is_last, least = len(shape) in _CHANNELS_LAST and stride[1] > 0, 0
    for dim in (1, *range(len(shape) - 1, 1, -1), 0) if is_last else ():
        ambiguous = dim == 0 and least == stride[1]
        is_last = is_last and shape[dim] > 0 and stride[dim] >= least and not ambiguous
        least = stride[dim] * shape[dim]
    return is_last


def _convolved(op: OpOverload, metas: Metas, args: Args, kwargs: Kwargs) -> Metas:
    """Return the metadata with channels last if the input or the weight has them so.

    The bias and its gradient are contiguous in any case. In float64, in three dimensions and
    without elements, kernels differ, and the meta kernel's strides remain. Source:
    mkldnn_conv_use_channels_last in ATen/native/ConvUtils.h.
    """
    tensors = [each for each in args if isinstance(each, Spec)]
    x, weight = tensors[_PLACE_OF_INPUT[base_name(op)] :][:2]
    if len(x.shape) != 4 or 0 in x.shape or x.dtype is torch.float64:
        return metas
    is_last = _has_channels_last(x) or _has_channels_last(weight)
    return tuple(
        _with_channels(each, last=is_last) if len(each.shape) == 4 else each for each in metas
    )


def _with_channels(result: TensorMeta, *, last: bool) -> TensorMeta:
    memory_format = _CHANNELS_LAST.get(len(result.shape)) if last else None
    made = torch.empty(
        result.shape, device="meta", memory_format=memory_format or torch.contiguous_format
    )
    return result._replace(stride=made.stride())


def _as_a_sum(op: OpOverload, metas: Metas, args: Args, kwargs: Kwargs) -> Metas:
    """Return the metadata with the strides that a sum of the arguments has.

    The meta kernels of these operators are in Python, and order the dimensions differently.
    """
    given = [as_meta(each) for each in args if isinstance(each, Spec)]
    if len(given) < 2:
        return metas
    return (metas[0]._replace(stride=torch.add(*given).stride()),)


def _scaled_by_a_power(op: OpOverload, metas: Metas, args: Args, kwargs: Kwargs) -> Metas:
    """Return the metadata of a product with powers of 2, which are contiguous."""
    x, exponents = args
    powers = as_meta(exponents).contiguous()
    return (metas[0]._replace(stride=torch.mul(as_meta(x), powers).stride()),)


def _like(name: str) -> Callable[..., Metas]:
    """A result that is no reduction has the strides of `empty_like` of an argument."""

    def mended(op: OpOverload, metas: Metas, args: Args, kwargs: Kwargs) -> Metas:
        given = args[argument_names(op)[name]]
        if metas[0].shape != given.shape:
            return metas
        return (metas[0]._replace(stride=torch.empty_like(as_meta(given)).stride()),)

    return mended


def _contiguous_results(op: OpOverload, metas: Metas, args: Args, kwargs: Kwargs) -> Metas:
    return tuple(contiguous(each.shape, each.dtype) for each in metas)


def _complex_to_real(op: OpOverload, metas: Metas, args: Args, kwargs: Kwargs) -> Metas:
    """Return the metadata with the dimension that is transformed last in the innermost place.

    The others keep their order, after the complex transforms of the dimensions before it. Source:
    _exec_fft in ATen/native/mkl/SpectralOps.cpp.
    """
    x, (*before, last), normalization, _ = args
    if not torch.backends.mkl.is_available():
        return metas
    made = as_meta(x)
    if before:
        made = torch.ops.aten._fft_c2c.default(made, before, normalization, False)
    order = sorted(set(range(made.ndim)) - {last % made.ndim}, key=made.stride, reverse=True)
    order.append(last % made.ndim)
    dense = contiguous_stride([metas[0].shape[dim] for dim in order])
    stride = tuple(dense[order.index(dim)] for dim in range(made.ndim))
    return (metas[0]._replace(stride=stride),)


def _layer_norm_moments(op: OpOverload, metas: Metas, args: Args, kwargs: Kwargs) -> Metas:
    """Correct saved moments: in the input's dtype, unless the weights are wider."""
    x, *parameters = [value for value in flattened(args, kwargs) if isinstance(value, Spec)]
    if any(each.dtype is not x.dtype for each in parameters):
        return metas
    return (metas[0], *(each._replace(dtype=x.dtype) for each in metas[1:]))


def _batch_norm_gradients(op: OpOverload, metas: Metas, args: Args, kwargs: Kwargs) -> Metas:
    """Drop unwanted results: the meta kernel always returns a gradient of the input first."""
    given = dict(zip(argument_names(op), args, strict=False)) | dict(kwargs)
    return metas[len(metas) - sum(given["output_mask"]) :]


def _column_major(index: int) -> Callable[..., Metas]:
    """The matrices of a result are column-major, as LAPACK leaves them."""

    def mended(op: OpOverload, metas: Metas, args: Args, kwargs: Kwargs) -> Metas:
        shape, _, dtype = metas[index]
        if len(shape) < 2:
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
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_IN_PYTHON = (
    "copysign div floor_divide heaviside logaddexp logical_and logical_or logical_xor "
    "native_dropout_backward special_xlog1py xlogy"
)
_IN_ORDER_OF_INPUT = (
    "max_pool3d_with_indices max_unpool2d reflection_pad2d replication_pad2d pixel_shuffle "
    "channel_shuffle"
)
_PLACE_OF_INPUT = {"convolution": 0, "convolution_backward": 1}
"""Place of the input among the tensors; before it is the gradient of the result."""
_MENDED: dict[str, Callable[..., Metas]] = {
    **dict.fromkeys(_IN_PYTHON.split(), _as_a_sum),
    **dict.fromkeys(_BATCH_NORMS.split(), _batch_norm_moments),
    "native_batch_norm_backward": _batch_norm_gradients,
    "batch_norm_backward": _batch_norm_gradients,
    "ldexp": _scaled_by_a_power,
    "normal": _contiguous_results,
    "pow.Scalar": _contiguous_results,
}
_MENDED_ON_CPU: dict[str, Callable[..., Metas]] = {
    **dict.fromkeys(_IN_ORDER_OF_INPUT.split(), _in_order_of_input),
    **dict.fromkeys(_PLACE_OF_INPUT, _convolved),
    "native_layer_norm": _layer_norm_moments,
    "binary_cross_entropy": _like("self"),
    "binary_cross_entropy_backward": _like("self"),
    "log_sigmoid_forward": _contiguous_results,
    "log_sigmoid_backward": _like("grad_output"),
    "nll_loss2d_forward": _contiguous_results,
    "nonzero_static": _contiguous_results,
    "_fft_c2r": _complex_to_real,
    "_linalg_svd": _column_major(2),
    "linalg_eig": _column_major(1),
}


def as_meta(spec: Spec) -> torch.Tensor:
    """Make a meta tensor with a spec's global metadata."""
    return without_data("meta", spec)


def without_data(device: str, spec: Spec) -> torch.Tensor:
    """Make a tensor of zeros with a spec's global metadata."""
    made = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=device)
    if device != "meta":
        # Kernels may refuse the values that the memory happens to have.
        made.untyped_storage().fill_(0)  # pyright: ignore[reportAttributeAccessIssue]
    return made
