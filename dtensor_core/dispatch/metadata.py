"""Global metadata of an operator's results (shape, stride, dtype), from that of its arguments.

torch's meta kernels cover all operators. But many are written in Python, take up to a millisecond,
and load torch._dynamo, which takes seconds. The operators that models consist of have shortcuts
therefore (`metadata_shortcuts`), which apply if their arguments are contiguous and of one
floating-point dtype; for everything else the meta kernel is called, once for all layouts. Used by
`make_entry` and `lists`, for a new call.
"""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

import torch

from dtensor_core.dispatch.arguments import Args, Kwargs, converted, flattened
from dtensor_core.dispatch.metadata_shortcuts import (
    Metas,
    base_name,
    contiguous,
    is_permuting,
    shortcut_metadata,
)
from dtensor_core.errors import RuleError
from dtensor_core.layout import contiguous_stride
from dtensor_core.operators.call import argument_names
from dtensor_core.spec import Spec, TensorMeta
from dtensor_core.torch_internals.dispatcher import OpOverload

_NAN_TO_NUM_IN_PLACE = torch.ops.aten.nan_to_num_.default


def output_metadata(op: OpOverload, args: Args, kwargs: Kwargs) -> Metas | None:
    """Return the metadata of the tensors that a call returns; None if it depends on data.

    `args` and `kwargs` hold specs for tensors.
    """
    if op is _NAN_TO_NUM_IN_PLACE:  # its meta kernel does not support complex numbers
        return (args[0].tensor_meta,)
    found = shortcut_metadata(op, args, kwargs)
    if found is None:
        found = _remembered(op, args, kwargs)
        if found is None and base_name(op) in _LIKE_INPUT:
            values = dict(zip(argument_names(op), args, strict=False)) | dict(kwargs)
            return (contiguous(values["self"].shape, values["self"].dtype),)
        mend = _MENDED.get(base_name(op))
        if mend is not None and found is not None:
            return mend(op, found, args, kwargs)
    return found


def view_offsets(op: OpOverload, args: Args, kwargs: Kwargs) -> tuple[int, ...]:
    """Return the storage offsets of views, counted from the argument's; () if all are 0."""
    if is_permuting(op):
        return ()
    result = _on("meta", op, args, kwargs)
    several = [result] if isinstance(result, torch.Tensor) else result
    offsets = tuple([int(view.storage_offset()) for view in several])
    return offsets if any(offsets) else ()


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
    if not _without_data("meta", x).is_contiguous(memory_format=memory_format):
        memory_format = torch.contiguous_format
    made = torch.empty(x.shape, device="meta", memory_format=memory_format)
    return result._replace(stride=made.stride())


def _as_a_sum(op: OpOverload, metas: Metas, args: Args, kwargs: Kwargs) -> Metas:
    """Return the metadata with the strides that a sum of the arguments has.

    The meta kernels of these operators are in Python, and order the dimensions differently.
    """
    given = [_without_data("meta", each) for each in args if isinstance(each, Spec)]
    if len(given) < 2 or op._schema.name.endswith("_"):
        return metas
    return (metas[0]._replace(stride=torch.add(*given).stride()),)


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
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_IN_PYTHON = (
    "copysign div floor_divide heaviside logaddexp logical_and logical_or logical_xor "
    "special_xlog1py xlogy"
)
_MENDED: dict[str, Callable[..., Metas]] = {
    **dict.fromkeys(_IN_PYTHON.split(), _as_a_sum),
    **dict.fromkeys(_BATCH_NORMS.split(), _batch_norm_moments),
    "native_layer_norm": _layer_norm_moments,
    "native_batch_norm_backward": _batch_norm_gradients,
    "batch_norm_backward": _batch_norm_gradients,
    "_linalg_svd": _column_major(2),
    "linalg_eig": _column_major(1),
}


# Reductions without a neutral element whose meta kernels accept empty tensors.
_WITHOUT_IDENTITY = frozenset((torch.ops.aten.max.default, torch.ops.aten.min.default))


# Gradients of `self` that have no meta kernel.
_LIKE_INPUT = {
    *("multi_margin_loss_backward", "multilabel_margin_loss_backward"),
    "fractional_max_pool3d_backward",
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
        key = call_key(op, args, kwargs)
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


def call_key(op: OpOverload, args: Args, kwargs: Kwargs) -> tuple[Hashable, ...]:
    """Return what equals that of another call only if kernels treat both alike.

    Raises:
        TypeError: There is no such thing (see `_key`).
    """
    return (op, torch.get_default_dtype(), _key(args), *map(_named_key, kwargs.items()))


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
    """Run a call on tensors of a device, without data or of zeros, and return its result."""
    made, named = converted(Spec, partial(_without_data, device), args, kwargs)
    if "device" in named:
        named["device"] = device
    if "generator" in named:  # nothing is drawn here, and some meta kernels refuse one
        named["generator"] = None
    return _INSTEAD.get(op, op)(*made, **named)


def _reshaped_copy(tensor: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    return tensor.reshape(size).contiguous()


def _written_slices(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *_: Any, **__: Any
) -> torch.Tensor:
    """Return a tensor of the shape of that into which slices are written, if the sizes fit."""
    wanted = list(x.shape)
    if x.ndim:
        wanted[dim] = index.numel()
    if x.ndim and source.ndim and list(source.shape) != wanted:
        raise RuleError(
            f"to write slices along dim {dim} of a tensor of shape {tuple(x.shape)}",
            found=f"{index.numel()} indices and a source of shape {tuple(source.shape)}",
            why="the source has one slice for each index, of the tensor's other sizes",
            hint=f"a source of shape {tuple(wanted)}",
        )
    return x.new_empty(x.shape)


def _unpacked(
    matrices: torch.Tensor,
    pivots: torch.Tensor,
    unpack_data: bool = True,
    unpack_pivots: bool = True,
) -> Sequence[torch.Tensor]:
    """Return the factors of matrices [..., m, n], if each has pivots: [..., min(m, n)] or longer.

    The kernel counts neither, and reads and writes other memory.
    """
    if unpack_pivots and matrices.ndim > 1:
        *batch, m, n = matrices.shape
        wanted = (*batch, min(m, n))
        if (
            pivots.shape[:-1].numel() != math.prod(batch)
            or not pivots.ndim
            or pivots.shape[-1] < wanted[-1]
        ):
            raise RuleError(
                f"to unpack the factors of matrices of shape {tuple(matrices.shape)}",
                found=f"pivots of shape {tuple(pivots.shape)}",
                why="each matrix has a pivot for each of its rows or columns, whichever are fewer",
                hint=f"pivots of shape {wanted}",
            )
    return torch.ops.aten.lu_unpack.default(matrices, pivots, unpack_data, unpack_pivots)


# Replacements for meta kernels that accept other calls than devices do. Shards of sizes that do not
# fit may happen to fit on some ranks, which then would wait for those where the kernel raises.
_INSTEAD: dict[OpOverload, Callable[..., torch.Tensor | Sequence[torch.Tensor]]] = {
    torch.ops.aten.view_copy.default: _reshaped_copy,
    torch.ops.aten.lu_unpack.default: _unpacked,
    **dict.fromkeys(
        (
            *(torch.ops.aten.index_add.default, torch.ops.aten.index_add_.default),
            *(torch.ops.aten.index_reduce.default, torch.ops.aten.index_reduce_.default),
        ),
        _written_slices,
    ),
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
    made = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=device)
    if device != "meta":
        # Kernels may refuse the values that the memory happens to have.
        made.untyped_storage().fill_(0)  # pyright: ignore[reportAttributeAccessIssue]
    return made
