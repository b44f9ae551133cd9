"""Global metadata (shape, stride, dtype) of an operator's results, from its arguments' metadata.

torch's meta kernels cover all operators. But many are written in Python, take up to a millisecond,
and load torch._dynamo, which takes seconds. The operators that models consist of have shortcuts
therefore (`shortcuts`), which apply if their arguments are contiguous and share a
floating-point dtype; for everything else the meta kernel is called, once for all layouts. Used by
`make_entry` and `special.foreach`, for a new call.
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
from dtensor_core.dispatch.cache import CACHE, MOST_METADATA
from dtensor_core.dispatch.metadata.corrections import as_on_device, without_data
from dtensor_core.dispatch.metadata.shortcuts import (
    Metas,
    base_name,
    contiguous,
    is_permuting,
    shortcut_metadata,
)
from dtensor_core.errors import RuleError
from dtensor_core.operators.rules.call import argument_names
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
        if found is not None:
            return as_on_device(op, found, args, kwargs)
    return found


def view_offsets(op: OpOverload, args: Args, kwargs: Kwargs) -> tuple[int, ...]:
    """Return the storage offsets of views, counted from the argument's; () if all are 0."""
    if is_permuting(op):
        return ()
    result = _on("meta", op, args, kwargs)
    several = [result] if isinstance(result, torch.Tensor) else result
    offsets = tuple([int(view.storage_offset()) for view in several])
    return offsets if any(offsets) else ()


# Reductions without a neutral element whose meta kernels accept empty tensors.
_WITHOUT_IDENTITY = frozenset((torch.ops.aten.max.default, torch.ops.aten.min.default))


# Gradients of `self` that have no meta kernel.
_LIKE_INPUT = {
    *("multi_margin_loss_backward", "multilabel_margin_loss_backward"),
    "fractional_max_pool3d_backward",
}
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def _remembered(op: OpOverload, args: Args, kwargs: Kwargs) -> Metas | None:
    """Return the metadata of the meta kernel, which is called once for equal metadata of arguments.

    Layouts and meshes do not matter to it, so other layouts need no further call.
    """
    if op.namespace != "aten":  # others' kernels may be registered anew
        return _by_kernel(op, args, kwargs)
    try:
        key = call_key(op, args, kwargs)
        found = CACHE.metadata.get(key)
    except TypeError:
        return _by_kernel(op, args, kwargs)
    if found is None:
        found = _by_kernel(op, args, kwargs)
        if found is not None:
            if len(CACHE.metadata) >= MOST_METADATA:
                CACHE.metadata.clear()
            CACHE.metadata[key] = found
    return found


def call_key(op: OpOverload, args: Args, kwargs: Kwargs) -> tuple[Hashable, ...]:
    """Return a key that two calls share only if kernels treat them alike.

    Raises:
        TypeError: There is no such key (see `_key`).
    """
    return (op, torch.get_default_dtype(), _key(args), *map(_named_key, kwargs.items()))


def _named_key(item: tuple[str, Any]) -> Hashable:
    name, value = item
    return name, None if name == "generator" else _key(value)


def _key(value: Any) -> Hashable:
    """Return a key that two arguments share only if kernels treat them alike.

    Raises:
        TypeError: There is no such key: for a tensor, and for a symbol of a graph.
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
    made, named = converted(Spec, partial(without_data, device), args, kwargs)
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
            why="the source has a slice for each index, of the tensor's other sizes",
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
