"""Attention and norm kernels of other devices, by their schemas, implemented for the CPU.

They allow testing their rules without the devices. Importing this module registers them; torch has
no CPU kernels under these names.
"""

from __future__ import annotations

import math
from typing import Any

import torch

_library = torch.library.Library("aten", "IMPL")
_PADDING = 32


def _scores(query: Any, key: Any, bias: Any, causal: bool, scale: float | None) -> torch.Tensor:
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores if bias is None else scores + bias
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(later, -math.inf) if causal else scores


def _attend(
    query: Any, key: Any, value: Any, bias: Any, causal: bool, scale: Any, dropout_p: float
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = _scores(query, key, bias, causal, scale)
    weights = torch.dropout(scores.softmax(-1), dropout_p, dropout_p > 0)
    value = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
    return weights @ value, scores.logsumexp(-1).float()


def _gradients(
    grad: Any, query: Any, key: Any, value: Any, bias: Any, out: Any, lse: Any, *how: Any
) -> tuple[torch.Tensor, ...]:
    """Gradients of `_attend`'s results, computed from the logsumexp alone, as the kernels do."""
    groups, repeated = key.shape[1], query.shape[1] // key.shape[1]
    weights = (_scores(query, key, bias, *how) - lse.to(query.dtype).unsqueeze(-1)).exp()
    key, value = (each.repeat_interleave(repeated, 1) for each in (key, value))
    through = weights * (grad @ value.mT - (grad * out).sum(-1, keepdim=True))
    scale = query.shape[-1] ** -0.5 if how[1] is None else how[1]

    def by_group(each: torch.Tensor) -> torch.Tensor:
        return each.unflatten(1, (groups, repeated)).sum(2)

    of_key, of_value = by_group(through.mT @ query * scale), by_group(weights.mT @ grad)
    return through @ key * scale, of_key, of_value, through


def _seed() -> torch.Tensor:
    return torch.zeros((), dtype=torch.long)


def _flash(
    q: Any, k: Any, v: Any, p: float = 0.0, causal: bool = False, *_: Any, scale: Any = None
):
    rng, nothing = torch.zeros(2, dtype=torch.uint64), torch.zeros((), dtype=torch.uint64)
    attended = _attend(q, k, v, None, causal, scale, p)
    return (*attended, None, None, q.shape[2], k.shape[2], rng, nothing, q.new_empty(0))


def _flash_backward(
    grad: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *rest: Any, scale: Any = None
):
    return _gradients(grad, q, k, v, None, out, lse, rest[5], scale)[:3]


def _efficient(*tensors: Any, scale: Any = None):
    q, k, v, bias, wants_lse, p, causal = (*tensors, 0.0, False)[:7]
    out, lse = _attend(q, k, v, bias, causal, scale, p)
    padding = -q.shape[2] % _PADDING
    lse = torch.nn.functional.pad(lse, (0, padding)) if wants_lse else lse[..., :0]
    return out, lse, _seed(), _seed()


def _efficient_backward(
    grad: Any, q: Any, k: Any, v: Any, bias: Any, out: Any, lse: Any, *rest: Any, scale: Any = None
):
    _, _, _, mask, causal = (*rest, False)[:5]
    found = _gradients(grad, q, k, v, bias, out, lse[..., : q.shape[2]], causal, scale)
    return found if bias is not None and mask[3] else (*found[:3], None)


def _cudnn(
    q: Any,
    k: Any,
    v: Any,
    bias: Any,
    wants_lse: bool,
    p: float = 0.0,
    causal: bool = False,
    *_: Any,
    scale: Any = None,
):
    out, lse = _attend(q, k, v, bias, causal, scale, p)
    return out, lse.unsqueeze(-1), None, None, q.shape[2], k.shape[2], _seed(), _seed(), None


def _cudnn_backward(
    grad: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *rest: Any, scale: Any = None
):
    _, _, bias, _, _, _, _, _, causal = rest
    return _gradients(grad, q, k, v, bias, out, lse.squeeze(-1), causal, scale)[:3]


def _overrideable(
    q: Any,
    k: Any,
    v: Any,
    bias: Any = None,
    p: float = 0.0,
    causal: bool = False,
    *_: Any,
    scale: Any = None,
):
    attended = _attend(q, k, v, bias, causal, scale, p)
    return (*attended, None, None, q.shape[2], k.shape[2], _seed(), _seed(), None)


def _overrideable_backward(
    grad: Any,
    q: Any,
    k: Any,
    v: Any,
    bias: Any,
    mask: Any,
    out: Any,
    lse: Any,
    *rest: Any,
    scale: Any = None,
):
    found = _gradients(grad, q, k, v, bias, out, lse, rest[5], scale)
    return found if bias is not None else (*found[:3], None)


def _flash_forward(q: Any, k: Any, v: Any, *rest: Any, scale: Any = None):
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    out, lse = _attend(q, k, v, None, rest[5], scale, rest[4])
    rng, nothing = torch.zeros(2, dtype=torch.uint64), torch.zeros((), dtype=torch.uint64)
    return out.transpose(1, 2), lse, rng, nothing, q.new_empty(0)


def _flash_backward_of(
    grad: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *rest: Any, scale: Any = None
):
    tensors = (each.transpose(1, 2) for each in (grad, q, k, v, out))
    grad, q, k, v, out = tensors
    found = _gradients(grad, q, k, v, None, out, lse, rest[5], scale)
    return tuple(each.transpose(1, 2) for each in found[:3])


def _efficient_forward(q: Any, k: Any, v: Any, bias: Any, *rest: Any, scale: Any = None):
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    out, *others = _efficient(q, k, v, bias, rest[6], rest[4], rest[5] == 1, scale=scale)
    return out.transpose(1, 2), *others, q.shape[2], k.shape[2]


def _efficient_backward_of(
    grad: Any, q: Any, k: Any, v: Any, bias: Any, out: Any, *rest: Any, scale: Any = None
):
    grad, q, k, v, out = (each.transpose(1, 2) for each in (grad, q, k, v, out))
    lse = rest[4][..., : q.shape[2]]
    found = _gradients(grad, q, k, v, bias, out, lse, rest[8] == 1, scale)
    return (*(each.transpose(1, 2) for each in found[:3]), found[3])


def _rms_norm_backward(grad: Any, x: Any, shape: Any, rstd: Any, weight: Any, mask: Any):
    dims = tuple(range(x.ndim - len(shape), x.ndim))
    scaled, normed = grad if weight is None else grad * weight, x * rstd
    of_x = rstd * (scaled - normed * (scaled * normed).mean(dims, keepdim=True))
    of_weight = (grad * normed).sum(tuple(range(dims[0])))
    return of_x if mask[0] else None, of_weight if mask[1] else None


_KERNELS = {
    "_fused_rms_norm_backward": _rms_norm_backward,
    "_scaled_dot_product_flash_attention": _flash,
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
    "_scaled_dot_product_efficient_attention": _efficient,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "_scaled_dot_product_cudnn_attention": _cudnn,
    "_scaled_dot_product_cudnn_attention_backward": _cudnn_backward,
    "_scaled_dot_product_fused_attention_overrideable": _overrideable,
    "_scaled_dot_product_fused_attention_overrideable_backward": _overrideable_backward,
    "_flash_attention_forward": _flash_forward,
    "_flash_attention_backward": _flash_backward_of,
    "_efficient_attention_forward": _efficient_forward,
    "_efficient_attention_backward": _efficient_backward_of,
}
for name, kernel in _KERNELS.items():
    _library.impl(name, kernel, "CPU")
