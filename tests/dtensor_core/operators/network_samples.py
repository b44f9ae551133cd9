"""Sample calls for attention, norms, embeddings and losses."""

from __future__ import annotations

from typing import Any

import torch

from tests.dtensor_core.operators import device_kernels
from tests.dtensor_core.operators.brute_force import Sample

aten = torch.ops.aten


def _t(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + 1)
    return torch.randn(shape, generator=generator)


def _call(op: Any, *args: Any, compare_values: bool = True, **kwargs: Any) -> Sample:
    return Sample(op, args, kwargs, compare_values)


def _qkv(heads: int = 6, rows: int = 4) -> tuple[Any, ...]:
    return _t(3, 6, rows, 8), _t(3, heads, 5, 8) * 2, _t(3, heads, 5, 8)


def _sampled_attention() -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    qkv, grouped, long = _qkv(), _qkv(heads=2), _qkv(rows=96)
    bias = _t(3, 6, 4, 5)
    flash = "_scaled_dot_product_flash_attention"
    for tensors, causal in ((qkv, True), (grouped, False)):
        out, lse, *rest = aten._scaled_dot_product_flash_attention(*tensors, 0.0, causal)
        found.setdefault(flash, []).append(
            _call(aten._scaled_dot_product_flash_attention.default, *tensors, 0.0, causal)
        )
        found.setdefault(f"{flash}_backward", []).append(
            _call(
                aten._scaled_dot_product_flash_attention_backward.default,
                *(_t(*out.shape), *tensors, out, lse, *rest[:4], 0.0, causal, *rest[4:6]),
            )
        )
    efficient = "_scaled_dot_product_efficient_attention"
    for tensors, given in ((qkv, bias), (long, None)):
        op = aten._scaled_dot_product_efficient_attention.default
        out, lse, *rest = op(*tensors, given, True)
        found.setdefault(efficient, []).append(_call(op, *tensors, given, True))
        mask = [True, True, True, given is not None]
        found.setdefault(f"{efficient}_backward", []).append(
            _call(
                aten._scaled_dot_product_efficient_attention_backward.default,
                *(_t(*out.shape), *tensors, given, out, lse, *rest, 0.0, mask),
            )
        )
    op = aten._scaled_dot_product_cudnn_attention.default
    out, lse, *rest = op(*qkv, bias, True)
    found["_scaled_dot_product_cudnn_attention"] = [_call(op, *qkv, bias, True)]
    found["_scaled_dot_product_cudnn_attention_backward"] = [
        _call(
            aten._scaled_dot_product_cudnn_attention_backward.default,
            *(_t(*out.shape), *qkv, out, lse, *rest[4:6], bias, *rest[:4], 0.0, False),
        )
    ]
    op = aten._scaled_dot_product_fused_attention_overrideable.default
    out, lse, *rest = op(*qkv, bias)
    found["_scaled_dot_product_fused_attention_overrideable"] = [_call(op, *qkv, bias)]
    found["_scaled_dot_product_fused_attention_overrideable_backward"] = [
        _call(
            aten._scaled_dot_product_fused_attention_overrideable_backward.default,
            *(_t(*out.shape), *qkv, bias, [True] * 4, out, lse, *rest[:4], 0.0, False, *rest[4:6]),
        )
    ]
    last = [each.transpose(1, 2).contiguous() for each in qkv]
    lengths = (None, None, 4, 5, 0.0, True)
    op = aten._flash_attention_forward.default
    out, lse, *rest = op(*last, *lengths, False)
    found["_flash_attention_forward"] = [_call(op, *last, *lengths, False)]
    found["_flash_attention_backward"] = [
        _call(
            aten._flash_attention_backward.default,
            *(_t(*out.shape), *last, out, lse, *lengths, *rest[:2]),
        )
    ]
    op = aten._efficient_attention_forward.default
    lengths = (None, None, 4, 5)
    out, lse, *rest = op(*last, bias, *lengths, 0.0, 0, True)
    found["_efficient_attention_forward"] = [_call(op, *last, bias, *lengths, 0.0, 0, True)]
    found["_efficient_attention_backward"] = [
        _call(
            aten._efficient_attention_backward.default,
            *(_t(*out.shape), *last, bias, out, *lengths, lse, 0.0, *rest[:2], 0, True),
        )
    ]
    return found


_TABLE, _INDICES = _t(7, 6), torch.tensor([0, 3, 6, 3, 5, 1])
_OFFSETS = torch.tensor([0, 2, 2, 5])


def _fused_layers() -> dict[str, list[Sample]]:
    x, qkv, out = _t(4, 5, 8), (_t(24, 8), _t(24)), (_t(8, 8), _t(8))
    norm, ffn = (_t(8), _t(8) * 2), (_t(12, 8), _t(12), _t(8, 12), _t(8))
    layer = aten._transformer_encoder_layer_fwd.default
    attention = aten._native_multi_head_attention.default
    return {
        "_transformer_encoder_layer_fwd": [
            _call(layer, x, 8, 2, *qkv, *out, False, False, 1e-5, *norm, *norm, *ffn)
        ],
        "_native_multi_head_attention": [
            _call(attention, x, x, x, 8, 2, *qkv, *out, None, True, average) for average in (0, 1)
        ],
    }


def _rms_norms() -> dict[str, list[Sample]]:
    x, weight = _t(6, 5, 4), _t(5, 4)
    _, rstd = aten._fused_rms_norm(x, [5, 4], weight, None)
    backward = aten._fused_rms_norm_backward.default
    return {
        "_fused_rms_norm": [
            _call(aten._fused_rms_norm.default, x, [5, 4], weight, None),
            _call(aten._fused_rms_norm.default, x, [4], None, 1e-3),
        ],
        "_fused_rms_norm_backward": [
            _call(backward, _t(6, 5, 4) * 2, x, [5, 4], rstd, weight, [True, True])
        ],
    }


def _batch_norms() -> dict[str, list[Sample]]:
    tensors = (_t(4, 6, 5), _t(6), _t(6) * 2, _t(6) * 3, _t(6).abs() + 1)
    found = {
        f"_native_batch_norm_legit{name}": [
            _call(getattr(aten, f"_native_batch_norm_legit{name}").default, *tensors, *how)
        ]
        for name, *how in (
            ("", True, 0.2, 1e-5),
            ("_functional", True, 0.2, 1e-5),
            ("_no_training", 0.2, 1e-5),
        )
    }
    for name in ("_batch_norm_no_update", "_batch_norm_with_update_functional"):
        found[name] = [_call(getattr(aten, name).default, *tensors, 0.2, 1e-5)]
    return found


SAMPLES: dict[str, list[Sample]] = {
    **_fused_layers(),
    **_rms_norms(),
    **_batch_norms(),
    **_sampled_attention(),
    "_embedding_bag_forward_only": [
        _call(aten._embedding_bag_forward_only.default, _TABLE, _INDICES, _OFFSETS, False, mode)
        for mode in (0, 1, 2)
    ],
    "embedding_renorm": [_call(aten.embedding_renorm_.default, _TABLE, _INDICES, 1.0, 2.0)],
}
assert device_kernels.__doc__  # imported for its registrations
