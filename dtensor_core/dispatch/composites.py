"""Composite operators that make plain tensors inside, so that a DTensor would meet them mixed.

Attention's math form builds its causal mask of sizes alone, `one_hot` its classes: here these are
made as replicated DTensors. A composite's kernel is wrapped for all tensors, and passes plain ones
on unchanged; `dispatch` calls the same functions, for in inference mode no kernel of autograd's
runs. What reads only shapes takes plain tensors too, and batch norms of one device's library are
those of all devices: they would write running moments unsaid. Imported by `tensor`, once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from dtensor_core.errors import RuleError, four_parts
from dtensor_core.placement import Replicate
from dtensor_core.spec import Spec, TensorMeta

_aten = torch.ops.aten
_math = _aten._scaled_dot_product_attention_math.default
_one_hot = _aten.one_hot.default
_is_same_size = _aten.is_same_size.default
_is_stored_alike = _aten._has_same_storage_numel.default
# Of every device type that a mesh may have; a kernel for all at once would not go before theirs.
_AUTOGRAD_KEYS = tuple(
    f"Autograd{device}" for device in ("CPU", "CUDA", "XPU", "HPU", "PrivateUse1")
)
_composite = torch._C.DispatchKey.CompositeImplicitAutograd  # pyright: ignore
_library = torch.library.Library("aten", "IMPL")


def install(cls: type[torch.Tensor]) -> dict[OpOverload, Callable[..., Any]]:
    """Wrap the composites for DTensors of class `cls`; what stands in for each."""

    def attention(query: torch.Tensor, key: torch.Tensor, *rest: Any, **options: Any) -> Any:
        if isinstance(query, cls) and isinstance(key, cls):
            rest, options = _mask_as_dtensor(query, key, rest, options)
        return _math._op_dk(_composite, query, key, *rest, **options)

    def one_hot(indices: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
        if not isinstance(indices, cls):
            return _one_hot._op_dk(_composite, indices, num_classes)
        if num_classes == -1:
            num_classes = int(indices.max()) + 1
        device = indices._local_tensor.device  # pyright: ignore
        classes = _replicated(indices, torch.arange(num_classes, device=device))
        return (indices.unsqueeze(-1) == classes).to(torch.int64)

    for key in _AUTOGRAD_KEYS:
        _library.impl("_scaled_dot_product_attention_math", attention, key)
        _library.impl("one_hot", one_hot, key)
    return {
        _math: attention,
        _one_hot: one_hot,
        _is_same_size: _same_shape,
        _is_stored_alike: _same_numel,
        _aten.cudnn_batch_norm.default: _batch_norm,
        _aten.cudnn_batch_norm_backward.default: _batch_norm_backward,
        _aten.miopen_batch_norm.default: _batch_norm_of_miopen,
        _aten.miopen_batch_norm_backward.default: _batch_norm_backward,
    }


def _same_shape(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors, of which one may be plain, have the same global shape."""
    return tensor.shape == other.shape


def _same_numel(tensor: torch.Tensor, tangent: torch.Tensor) -> bool:
    """Whether a tangent can be stored as its tensor is, for all that is known of both.

    It is asked of every dual number. Raises RuleError where one of the two is an argument of a
    graph being traced: the graph would hold its local tensor as a constant, and be wrong.
    """
    proxies = sys.modules.get("torch.fx.experimental.proxy_tensor")
    mode = proxies.get_proxy_mode() if proxies else None
    has = proxies.has_proxy_slot if proxies else None
    if has and mode and (has(tensor, mode.tracer) or has(tangent, mode.tracer)):
        raise RuleError(
            four_parts(
                asked="torch.func.linearize of a function of DTensors",
                found=f"a tangent of shape {tuple(tangent.shape)} as the argument of a graph",
                why="a graph is traced of local tensors and collectives, and would take those of "
                "its DTensor arguments for constants",
                hint="torch.func.jvp, which traces nothing",
            )
        )
    return tensor.numel() == tangent.numel()


def _batch_norm(x: Any, *rest: Any) -> tuple[Any, ...]:
    """What the operator of all devices gives, and an empty reserve."""
    reserve = x._local_tensor.new_empty(0, dtype=torch.uint8)
    return *_aten.native_batch_norm(x, *rest), _replicated(x, reserve)


def _batch_norm_of_miopen(x: Any, *rest: Any) -> tuple[Any, ...]:
    return _aten.native_batch_norm(x, *rest)


def _batch_norm_backward(x: Any, grad: Any, *rest: Any) -> tuple[Any, ...]:
    """That of the operator of all devices, in training, which is all that this is called for."""
    *moments, eps = rest[:6]
    return _aten.native_batch_norm_backward(grad, x, *moments, True, eps, [True] * 3)


def _replicated(like: Any, local: torch.Tensor) -> Any:
    """A local tensor that is the same on every rank, as a DTensor on the mesh of another one."""
    mesh = like._spec.mesh
    meta = TensorMeta(local.shape, local.stride(), local.dtype)
    return type(like)(local, Spec(mesh, (Replicate(),) * mesh.ndim, meta))


def _mask_as_dtensor(
    query: Any, key: Any, rest: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments after query and key, with causality spelled out as a mask.

    They are value, attn_mask, dropout_p, is_causal, ...; q is [.., L, E] and k is [.., S, E].
    """
    if len(rest) < 4 or not rest[3]:
        return rest, options
    shape = (query.shape[-2], key.shape[-2])
    device = query._local_tensor.device
    local = torch.full(shape, -torch.inf, dtype=query.dtype, device=device).triu_(1)
    mask = _replicated(query, local)
    return (rest[0], mask, rest[2], False, *rest[4:]), options
