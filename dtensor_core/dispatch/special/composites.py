"""Kernels for composite operators whose own kernels do not work with DTensors.

- Some make plain tensors from sizes alone, such as attention's causal mask, the classes of
  `one_hot` or the mask of `combinations`; here these are replicated DTensors.
- `tensor_split` reads its indices from memory.
- Composites with `out=` resize or rebind their arguments; here the result is computed first and
  then copied.
- Operators that only read shapes must accept plain tensors as well.
- Batch norms of cuDNN and MIOpen map to the device-independent operators, as they write running
  moments that their schemas do not declare.

Each kernel is registered at the key that tensor subclasses and modes have, before autograd's, in
inference mode too. Plain tensors therefore never reach it, and other subclasses are passed on.
Imported by `tensor`, once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from dtensor_core.dispatch.special.inplace_writeback import (
    check_differentiable,
    does_not_fit,
    without_out,
)
from dtensor_core.dispatch.special.recurrent import cell, layer
from dtensor_core.errors import OutOfRangeError, RuleError
from dtensor_core.placement import Replicate
from dtensor_core.spec import Spec, TensorMeta
from dtensor_core.torch_internals.dispatcher import (
    COMPOSITE_IMPLICIT,
    PYTHON_KERNELS,
    OpOverload,
    has_kernel,
    is_included,
    key_of_device,
    names_with_kernel,
    without_python_kernels,
)
from dtensor_core.torch_internals.trees import tree_leaves
from dtensor_core.tracing import is_at_hand, no_modes

aten = torch.ops.aten
# Kept for the life of the process: torch removes the kernels of a library that is freed.
_library = torch.library.Library("aten", "IMPL")
_OF_SUBCLASSES = "PythonTLSSnapshot"


def install(cls: type[torch.Tensor]) -> dict[str, Callable[..., Any]]:
    """Register the kernels for DTensors of class `cls`.

    Returns:
        The functions that replace operators in `dispatch`, by name. They include the kernels, since
        operators that `dispatch` decomposes bypass the key.
    """
    functions = dict.fromkeys(_composites_with_out(), _into) | _FUNCTIONS
    kernels = {name: _kernel(cls, name, function) for name, function in functions.items()}
    for name, kernel in kernels.items():
        _library.impl(name, kernel, _OF_SUBCLASSES)
    return {f"aten::{name}": kernel for name, kernel in (kernels | _STAND_INS).items()}


def _kernel(cls: type[torch.Tensor], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a kernel that calls `function(op, ...)` if a DTensor is among the arguments."""
    packet, _, overload = name.partition(".")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        op = getattr(getattr(aten, packet), overload or "default")
        if any(isinstance(each, cls) for each in tree_leaves((args, kwargs))):
            return function(op, *args, **kwargs)
        # `_op_dk` calls the C++ kernel even while torch traces and prefers Python kernels.
        decomposed = op.py_kernels.get(COMPOSITE_IMPLICIT) if _decomposes() else None
        return (decomposed or partial(op._op_dk, COMPOSITE_IMPLICIT))(*args, **kwargs)

    return kernel


def _decomposes() -> bool:
    """True if torch runs Python kernels, as it does while tracing with symbolic sizes."""
    return is_included(PYTHON_KERNELS)


def _composites_with_out() -> list[str]:
    """Return the composites of aten with `out=`, without the namespace."""
    names = [name.split("::") for name in names_with_kernel("CompositeImplicitAutograd")]
    outs = {"out", "U", "Q", "eigvals"}  # parts of the names of their overloads
    return [
        name
        for namespace, name in names
        if namespace == "aten" and not outs.isdisjoint(name.partition(".")[2].split("_"))
    ]


def _into(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Compute the result and copy it into the tensors of `out=`, which keep their layouts."""
    given = [argument.name for argument in op._schema.arguments if argument.is_out]
    outs = [kwargs.pop(name) for name in given]
    check_differentiable(op, args, kwargs | dict(zip(given, outs, strict=True)))
    made = without_out(op, given)(*args, **kwargs)
    for out, result in zip(outs, made if isinstance(made, tuple) else (made,), strict=True):
        if out.shape != result.shape:
            raise does_not_fit(op, out._spec, result.shape)
        out.copy_(result)
    return outs[0] if len(outs) == 1 else tuple(outs)


def _attention(op: OpOverload, *args: Any, **options: Any) -> Any:
    query, key, *rest = args
    if hasattr(query, "_spec") and hasattr(key, "_spec"):
        rest, options = _mask_as_dtensor(query, key, tuple(rest), options)
    return op._op_dk(COMPOSITE_IMPLICIT, query, key, *rest, **options)


def _undecomposed(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Run the eager kernel of an operator whose components have rules.

    torch's Python kernel makes plain index and weight tensors, and would exchange no rows.
    """
    with without_python_kernels():
        return op._op_dk(COMPOSITE_IMPLICIT, *args, **kwargs)


def _one_hot(op: OpOverload, indices: Any, num_classes: int = -1) -> torch.Tensor:
    if num_classes == -1:
        num_classes = int(indices.max()) + 1
    _check_classes(indices, num_classes)
    device = indices._local_tensor.device
    classes = _replicated(indices, torch.arange(num_classes, device=device))
    return (indices.unsqueeze(-1) == classes).to(torch.int64)


def _check_classes(indices: Any, num_classes: int) -> None:
    """Raise OutOfRangeError for a class out of range, on the ranks that hold it."""
    local = indices._local_tensor
    if not is_at_hand(local) or not local.numel() or indices._spec.sums:
        return
    with no_modes():
        least, most = map(int, local.aminmax())
    if least < 0 or most >= num_classes:
        what = "non-negative" if least < 0 else "smaller than num_classes"
        raise OutOfRangeError(
            f"one_hot: Class values must be {what}.",
            found=f"class {least if least < 0 else most}",
            hint=f"classes from 0 to {num_classes - 1}",
        )


def _affine_grid_backward(op: OpOverload, grad: Any, size: Sequence[int], corners: bool) -> Any:
    dims = len(size) - 2
    eye = torch.eye(dims, dims + 1, dtype=grad.dtype, device=grad._local_tensor.device)
    points = aten.affine_grid_generator(eye.unsqueeze(0), [1, *size[1:]], corners)
    points = torch.cat([points, torch.ones_like(points[..., :1])], -1).flatten(1, -2)
    return grad.flatten(1, -2).mT @ _replicated(grad, points)


def _istft(
    op: OpOverload,
    x: Any,
    n_fft: int,
    hop_length: Any = None,
    win_length: Any = None,
    window: Any = None,
    *rest: Any,
    **options: Any,
) -> torch.Tensor:
    """Supply a replicated window of ones, which the composite would make as a plain tensor."""
    if window is None:
        device, dtype = x._local_tensor.device, x.dtype.to_real()
        window = _replicated(x, torch.ones(win_length or n_fft, dtype=dtype, device=device))
    return op._op_dk(COMPOSITE_IMPLICIT, x, n_fft, hop_length, win_length, window, *rest, **options)


def _stft(
    op: OpOverload,
    x: Any,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> torch.Tensor:
    """Compute frames as windows of a dim, whose gradients accumulate where they overlap.

    The composite, run on meta tensors, validates the arguments; on real data it would address
    frames by their position in memory.
    """
    rest = normalized, onesided, return_complex, align_to_window
    if align_to_window or not isinstance(getattr(x, "_spec", None), Spec):
        return op._op_dk(COMPOSITE_IMPLICIT, x, n_fft, hop_length, win_length, window, *rest)
    metas = [each if each is None else _as_meta(each) for each in (x, window)]
    meta = op(metas[0], n_fft, hop_length, win_length, metas[1], *rest)
    signals = x.unsqueeze(0) if x.ndim == 1 else x
    frames = signals.unfold(-1, n_fft, n_fft // 4 if hop_length is None else hop_length)
    width = n_fft if win_length is None else win_length
    if window is None and width < n_fft:
        window = _replicated(x, x._local_tensor.new_ones(width))
    if window is not None:
        before = (n_fft - width) // 2
        frames = frames * F.pad(window, (before, n_fft - width - before))
    norm = "ortho" if normalized else "backward"
    if x.is_complex() or onesided is False:
        made = torch.fft.fft(frames, norm=norm)
    else:
        made = torch.fft.rfft(frames, norm=norm)
    made = made.transpose(1, 2)
    made = made.squeeze(0) if x.ndim == 1 else made
    return made if meta.is_complex() else torch.view_as_real(made)


def _as_meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _rms_norm(
    op: OpOverload, x: Any, shape: Sequence[int], weight: Any = None, eps: float | None = None
) -> torch.Tensor:
    """Normalize sharded rows by reducing their squares; the gradient sends one number per row.

    The composite would leave partial sums to be expanded. Devices with a fused kernel use its rule.
    """
    dims = range(x.ndim - len(shape), x.ndim)
    spec = getattr(x, "_spec", None)
    sharded = (
        [axis for axis, p in enumerate(spec.placements) if p.sharded_dim in dims] if spec else ()
    )
    device = key_of_device(x.device.type)
    fits = x.is_floating_point() and tuple(x.shape[-len(shape) :]) == tuple(shape)
    if not sharded or not fits or has_kernel("aten::_fused_rms_norm", device):
        return op._op_dk(COMPOSITE_IMPLICIT, x, shape, weight, eps)
    wide = x.float() if x.dtype.itemsize < 4 else x
    squares = wide.square().mean(tuple(dims), keepdim=True)
    replicated = [Replicate() if n in sharded else p for n, p in enumerate(squares.placements)]
    squares = squares.redistribute(placements=replicated)
    summed = {"run_check": False, "shape": squares.shape, "stride": squares.stride()}
    # Its gradient is replicated too.
    squares = type(x).from_local(squares.to_local(), x._spec.mesh, replicated, **summed)
    eps = torch.finfo(wide.dtype).eps if eps is None else eps
    made = wide * (squares + eps).rsqrt()
    made = made if weight is None else made * weight
    return made.to(x.dtype).contiguous()


def _pad_circular(op: OpOverload, x: torch.Tensor, pads: Sequence[int]) -> torch.Tensor:
    """Pad by concatenating slices, which send only the rows that move.

    The composite's kernel would fill an empty tensor part by part.
    """
    sizes = x.shape[::-1]
    if any(not 0 <= pad <= sizes[n // 2] for n, pad in enumerate(pads)):
        return op._op_dk(COMPOSITE_IMPLICIT, x, pads)
    for n in range(len(pads) // 2):
        dim, before, behind = x.ndim - 1 - n, pads[2 * n], pads[2 * n + 1]
        ends = [x.narrow(dim, x.shape[dim] - before, before), x, x.narrow(dim, 0, behind)]
        x = torch.cat(ends, dim) if before or behind else x
    # The operator is no view: without any padding, its result is still a new tensor.
    return x if any(pads) else x.clone()


def _combinations(
    op: OpOverload, values: Any, r: int = 2, with_replacement: bool = False
) -> torch.Tensor:
    numbers = torch.arange(values.shape[0], device=values._local_tensor.device)
    chosen = torch.combinations(numbers, r, with_replacement)
    index = _replicated(values, chosen.flatten().to(torch.int64))
    return values.index_select(0, index).view(chosen.shape)


def _tensor_split(op: OpOverload, values: torch.Tensor, where: Any, dim: int = 0) -> Any:
    numbers = where.full_tensor().tolist() if hasattr(where, "_spec") else where.tolist()
    if isinstance(numbers, int):
        return aten.tensor_split.sections(values, numbers, dim)
    return aten.tensor_split.indices(values, numbers, dim)


def _same_shape(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """True if two tensors, one possibly plain, have the same global shape."""
    return tensor.shape == other.shape


def _same_numel(tensor: torch.Tensor, tangent: torch.Tensor) -> bool:
    """True if a tangent can be stored like its tensor, as far as is known of both.

    Called for every dual number.

    Raises:
        RuleError: One of the two is an argument of a graph being traced. The graph would capture
            its local tensor as a constant, and be wrong.
    """
    proxies = sys.modules.get("torch.fx.experimental.proxy_tensor")
    mode = proxies.get_proxy_mode() if proxies else None
    has = proxies.has_proxy_slot if proxies else None
    if has and mode and (has(tensor, mode.tracer) or has(tangent, mode.tracer)):
        raise RuleError(
            "torch.func.linearize of a function of DTensors",
            found=f"a tangent of shape {tuple(tangent.shape)} as the argument of a graph",
            why="the traced graph would contain the local tensors of its DTensor arguments as "
            "constants",
            hint="torch.func.jvp, which does not trace",
        )
    return tensor.numel() == tangent.numel()


def _batch_norm(x: Any, *rest: Any) -> tuple[Any, ...]:
    """Run the device-independent operator; the reserve that cuDNN returns is empty."""
    reserve = x._local_tensor.new_empty(0, dtype=torch.uint8)
    return *aten.native_batch_norm(x, *rest), _replicated(x, reserve)


def _batch_norm_of_miopen(x: Any, *rest: Any) -> tuple[Any, ...]:
    return aten.native_batch_norm(x, *rest)


def _batch_norm_backward(x: Any, grad: Any, *rest: Any) -> tuple[Any, ...]:
    """Run the device-independent backward in training mode, the only mode this is called in."""
    *moments, eps = rest[:6]
    return aten.native_batch_norm_backward(grad, x, *moments, True, eps, [True] * 3)


def _by_numbers(packet: Any, *args: Any) -> Any:
    """Run a list operator whose last argument is a tensor with a number per element."""
    *lists, scalars = args
    return packet.ScalarList(*lists, scalars.tolist())


def _replicated(like: Any, local: torch.Tensor) -> Any:
    """Wrap a local tensor, equal on all ranks, as a replicated DTensor on the mesh of `like`."""
    mesh = like._spec.mesh
    meta = TensorMeta(local.shape, local.stride(), local.dtype)
    return type(like)(local, Spec(mesh, (Replicate(),) * mesh.ndim, meta))


def _mask_as_dtensor(
    query: Any, key: Any, rest: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments after query and key, with causality as an explicit mask.

    They are value, attn_mask, dropout_p, is_causal, ...; query is [.., L, E] and key is [.., S, E].
    """
    if len(rest) < 4 or not rest[3]:
        return rest, options
    shape = (query.shape[-2], key.shape[-2])
    device = query._local_tensor.device
    local = torch.full(shape, -torch.inf, dtype=query.dtype, device=device).triu_(1)
    mask = _replicated(query, local)
    return (rest[0], mask, rest[2], False, *rest[4:]), options


def _of_nothing(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Run the composite; wrap the plain result that it may return for empty tensors."""
    made = op._op_dk(COMPOSITE_IMPLICIT, *args, **kwargs)
    like = next(each for each in tree_leaves((args, kwargs)) if hasattr(each, "_spec"))
    is_plain = isinstance(made, torch.Tensor) and not hasattr(made, "_spec")
    return _replicated(like, made) if is_plain else made


_RESAMPLING = (
    *(f"{way}{n}d" for way in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3)),
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"),
    *(f"_upsample_{way}2d_aa" for way in ("bilinear", "bicubic", "lanczos")),
)
_OF_NOTHING = (
    "linalg_matrix_rank linalg_matrix_rank.atol_rtol_tensor linalg_matrix_rank.atol_rtol_float "
    "linalg_matrix_rank.tol_tensor linalg_norm linalg_norm.ord_str linalg_matrix_norm "
    "linalg_matrix_norm.str_ord linalg_cond linalg_cond.p_str"
)
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "_scaled_dot_product_attention_math": _attention,
    "one_hot": _one_hot,
    **dict.fromkeys(_OF_NOTHING.split(), _of_nothing),
    "affine_grid_generator_backward": _affine_grid_backward,
    "istft": _istft,
    "stft": _stft,
    "rms_norm": _rms_norm,
    "_pad_circular": _pad_circular,
    "combinations": _combinations,
    "tensor_split.tensor_indices_or_sections": _tensor_split,
    **{f"{name}.vec": _undecomposed for name in _RESAMPLING},
    **{f"{name}.input": layer for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
    **{f"{name}_cell": cell for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
}
_STAND_INS: dict[str, Callable[..., Any]] = {
    **{
        f"_foreach_{name}.Tensor": partial(_by_numbers, getattr(aten, f"_foreach_{name}"))
        for name in ("addcmul", "addcmul_", "addcdiv", "addcdiv_")
    },
    "is_same_size": _same_shape,
    "_has_same_storage_numel": _same_numel,
    "cudnn_batch_norm": _batch_norm,
    "cudnn_batch_norm_backward": _batch_norm_backward,
    "miopen_batch_norm": _batch_norm_of_miopen,
    "miopen_batch_norm_backward": _batch_norm_backward,
}
