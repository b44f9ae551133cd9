"""Composite operators that make plain tensors inside, so that a DTensor would meet them mixed.

`_scaled_dot_product_attention_math` builds its causal mask from sizes alone: here the mask is made
as a replicated DTensor first. The composite's kernel is wrapped for all tensors, and passes plain
ones on unchanged. Imported by `tensor`, once.
"""

from __future__ import annotations

from typing import Any

import torch

from dtensor_core.placement import Replicate
from dtensor_core.spec import Spec, TensorMeta

_math = torch.ops.aten._scaled_dot_product_attention_math.default
_composite = torch._C.DispatchKey.CompositeImplicitAutograd  # pyright: ignore
_library = torch.library.Library("aten", "IMPL")


def install(cls: type[torch.Tensor]) -> None:
    """Wrap the composites for DTensors of class `cls`."""

    def attention(query: torch.Tensor, key: torch.Tensor, *rest: Any, **options: Any) -> Any:
        if isinstance(query, cls) and isinstance(key, cls):
            rest, options = _mask_as_dtensor(query, key, rest, options)
        return _math._op_dk(_composite, query, key, *rest, **options)

    for key in ("AutogradCPU", "AutogradCUDA"):
        _library.impl("_scaled_dot_product_attention_math", attention, key)


def _mask_as_dtensor(
    query: Any, key: Any, rest: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments after query and key, with causality spelled out as a mask.

    They are value, attn_mask, dropout_p, is_causal, ...; q is [.., L, E] and k is [.., S, E].
    """
    if len(rest) < 4 or not rest[3]:
        return rest, options
    shape = (query.shape[-2], key.shape[-2])
    spec, device = query._spec, query._local_tensor.device
    local = torch.full(shape, -torch.inf, dtype=query.dtype, device=device).triu_(1)
    meta = TensorMeta(torch.Size(shape), local.stride(), local.dtype)
    mask = type(query)(local, Spec(spec.mesh, (Replicate(),) * spec.mesh.ndim, meta))
    return (rest[0], mask, rest[2], False, *rest[4:]), options
