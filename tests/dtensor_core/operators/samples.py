"""Sample calls of rows that torch's operator database does not reach, or not in all ways."""

from __future__ import annotations

import math
from typing import Any

import torch

from tests.dtensor_core.operators import batched_samples, network_samples
from tests.dtensor_core.operators.brute_force import Sample

aten = torch.ops.aten


def _t(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + 1)
    return torch.randn(shape, generator=generator)


def _positive(*shape: int) -> torch.Tensor:
    return _t(*shape).abs() + 0.5


def _ids(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(3))


def _small(*shape: int, dtype: torch.dtype = torch.int8) -> torch.Tensor:
    """Numbers that every dtype has, and whose products half precision sums exactly."""
    return (_ids(5, *shape) - 2).to(dtype)


def _groups(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [_small(*shape, dtype=torch.bfloat16) for shape in shapes]


def _ends(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def _rows(high: int, *shape: int) -> torch.Tensor:
    """Indices that differ along every dimension, so that the order of writes does not matter."""
    count = max(shape)
    order = torch.randperm(high, generator=torch.Generator().manual_seed(3))
    grid = torch.arange(shape[0]).view(-1, 1) + torch.arange(shape[1]).view(1, -1)
    return order[grid % high] if count <= high else _ids(high, *shape)


def _call(op: Any, *args: Any, compare_values: bool = True, **kwargs: Any) -> Sample:
    return Sample(op, args, kwargs, compare_values)


def _unary(name: str) -> list[Sample]:
    op = getattr(aten, name).default
    return [_call(op, _positive(6, 5)), _call(op, _positive(2, 3, 4))]


def _complex(*shape: int) -> torch.Tensor:
    return torch.complex(_t(*shape), _t(*shape).flip(0))


def _convolution(x: Any, weight: Any, bias: Any, **options: Any) -> Sample:
    return _call(aten.convolution.default, x, weight, bias, *_options(weight, **options))


def _resampled(name: str, own: int) -> list[Sample]:
    """Samples of doubled, halved and other sizes, and their gradients."""
    op = getattr(aten, name).default
    rest = [*([] if "nearest" in name else [False]), *[None] * own]
    found: list[Sample] = []
    for given, made in ((4, 8), (6, 3), (3, 4)):
        shape, out = [1, 2, *[given] * own], [made] * own
        if name.endswith("_backward"):
            found.append(_call(op, _t(1, 2, *out), out, shape, *rest))
        else:
            found.append(_call(op, _t(*shape), out, *rest))
    return found


def _options(
    weight: Any, *, stride: int = 1, padding: int = 0, transposed: bool = False, groups: int = 1
) -> tuple[Any, ...]:
    ones = [1] * (weight.ndim - 2)
    zeros = [0] * len(ones)
    return [stride for _ in ones], [padding for _ in ones], ones, transposed, zeros, groups


def _convolution_backward(x: Any, weight: Any, mask: list[bool], **options: Any) -> Sample:
    given = _options(weight, **options)
    out = aten.convolution(x, weight, None, *given)
    channels = out.shape[1]
    return _call(
        aten.convolution_backward.default, _t(*out.shape), x, weight, [channels], *given, mask
    )


def _gradient(op: Any, *after: Any) -> list[Sample]:
    return [_call(op, _t(6, 5), _positive(6, 5), *after)]


def _attention() -> tuple[Any, ...]:
    return _t(3, 6, 4, 8), _t(3, 6, 5, 8) * 2, _t(3, 6, 5, 8)


def _attention_backward(causal: bool) -> Sample:
    q, k, v = _attention()
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    return _call(backward, _t(*out.shape), q, k, v, out, lse, 0.0, causal)


def _layer_norm_backward(mask: list[bool]) -> Sample:
    x, weight, bias = _t(6, 5, 4), _t(4), _t(4) * 2
    _, mean, rstd = aten.native_layer_norm(x, [4], weight, bias, 1e-5)
    backward = aten.native_layer_norm_backward.default
    return _call(backward, _t(6, 5, 4) * 3, x, [4], mean, rstd, weight, bias, mask)


_UNARY = (
    "neg positive real deg2rad rad2deg relu exp exp2 expm1 sigmoid "
    "tanh sinh asinh atan erf ceil floor round trunc sign sgn hardtanh relu6 clone detach alias "
    "lift_fresh conj_physical"
)
_BINARY = "div divide true_divide add sub subtract mul multiply"


_flash = aten._scaled_dot_product_flash_attention_for_cpu.default

SAMPLES: dict[str, list[Sample]] = {
    **{name: _unary(name) for name in _UNARY.split()},
    **{
        name: [
            _call(getattr(aten, name).Tensor, _t(6, 5), _positive(6, 5)),
            _call(getattr(aten, name).Tensor, _t(2, 6, 5), _positive(5)),
            _call(getattr(aten, name).Tensor, _t(6, 1), _positive(1, 5)),
            _call(getattr(aten, name).Tensor, _t(6, 5), 2.5),
        ]
        for name in _BINARY.split()
    },
    "lerp": [_call(aten.lerp.Scalar, _t(6, 5), _t(5), 0.3)],
    "addcmul": [_call(aten.addcmul.default, _t(6, 5), _t(6, 5) * 2, _t(5), value=0.5)],
    "addcdiv": [_call(aten.addcdiv.default, _t(6, 5), _t(6, 5) * 2, _positive(5), value=0.5)],
    "where": [_call(aten.where.self, _t(6, 5) > 0, _t(6, 5), _t(5))],
    "gelu_backward": _gradient(aten.gelu_backward.default),
    "silu_backward": _gradient(aten.silu_backward.default),
    "sigmoid_backward": _gradient(aten.sigmoid_backward.default),
    "tanh_backward": _gradient(aten.tanh_backward.default),
    "leaky_relu_backward": _gradient(aten.leaky_relu_backward.default, 0.1, False),
    "elu_backward": [
        _call(aten.elu_backward.default, _t(6, 5), 1.0, 1.0, 1.0, False, _t(6, 5) * 2)
    ],
    "softplus_backward": _gradient(aten.softplus_backward.default, 1.0, 20.0),
    "_int_mm": [_call(aten._int_mm.default, _small(20, 16), _small(16, 8))],
    "_weight_int8pack_mm": [
        _call(
            aten._weight_int8pack_mm.default,
            _small(4, 32, dtype=torch.bfloat16),
            _small(32, 32),
            _small(32, dtype=torch.bfloat16),
        )
    ],
    "_grouped_mm": [
        _call(aten._grouped_mm.default, *_groups((6, 32), (3, 32, 16)), _ends(1, 4, 6)),
        _call(aten._grouped_mm.default, *_groups((4, 3, 32), (4, 32, 16))),
        _call(aten._grouped_mm.default, *_groups((3, 6, 32), (32, 16)), _ends(8, 8, 16)),
        _call(aten._grouped_mm.default, *_groups((6, 16), (16, 32)), _ends(8, 16)),
    ],
    "_scaled_mm": [
        _call(
            aten._scaled_mm.default,
            _small(6, 32, dtype=torch.float8_e4m3fn),
            _small(32, 32, dtype=torch.float8_e4m3fn).t(),
            *scales,
            bias,
            out_dtype=torch.bfloat16,
        )
        for scales, bias in (
            ((torch.tensor(2.0), torch.tensor(0.5)), None),
            ((_positive(6, 1), _positive(1, 32)), _small(32, dtype=torch.bfloat16)),
        )
    ],
    "mm": [_call(aten.mm.default, _t(6, 4), _t(4, 5))],
    "outer": [_call(aten.outer.default, _t(6), _t(5))],
    "addmm": [
        _call(aten.addmm.default, _t(5), _t(6, 4), _t(4, 5)),
        _call(aten.addmm.default, _t(6, 1), _t(6, 4), _t(4, 5), beta=0.5, alpha=2),
    ],
    "addmv": [_call(aten.addmv.default, _t(6), _t(6, 4), _t(4))],
    "baddbmm": [_call(aten.baddbmm.default, _t(3, 6, 5), _t(3, 6, 4), _t(3, 4, 5))],
    "addbmm": [_call(aten.addbmm.default, _t(6, 5), _t(3, 6, 4), _t(3, 4, 5))],
    "sum": [
        _call(aten.sum.default, _t(7, 5)),
        _call(aten.sum.dim_IntList, _t(6, 5, 4), [0, -1], True),
    ],
    "mean": [
        _call(aten.mean.default, _t(7, 5)),
        _call(aten.mean.dim, _t(7, 5, 4), [0, -1], True),
        _call(aten.mean.dim, _t(7, 5), [1]),
    ],
    "_is_any_true": [_call(aten._is_any_true.default, _t(7, 5) > 1)],
    "_is_all_true": [_call(aten._is_all_true.default, _t(7, 5) > -9)],
    "norm": [
        _call(aten.norm.Scalar, _t(7, 5), 3),
        _call(aten.norm.ScalarOpt_dim, _t(4, 5), None, [0], True),
        _call(aten.norm.ScalarOpt_dim, _t(4, 5), math.inf, [1]),
    ],
    "_weight_norm_interface": [
        _call(aten._weight_norm_interface.default, _t(6, 5), _t(6, 1)),
        _call(aten._weight_norm_interface.default, _t(6, 5), _t(1, 5), 1),
    ],
    "_weight_norm_interface_backward": [
        _call(
            aten._weight_norm_interface_backward.default,
            _t(6, 5),
            _t(6, 5) * 2,
            _t(6, 1),
            _positive(6, 1),
            0,
        ),
    ],
    "linalg_vector_norm": [
        _call(aten.linalg_vector_norm.default, _t(7, 5)),
        _call(aten.linalg_vector_norm.default, _t(4, 5), 3, [0], True),
        *(_call(aten.linalg_vector_norm.default, _t(4, 5), order) for order in (0, -2)),
        *(_call(aten.linalg_vector_norm.default, _t(4, 5), sign * math.inf) for sign in (1, -1)),
    ],
    "amin": [_call(aten.amin.default, _t(7, 5), [0], True)],
    "var": [_call(aten.var.correction, _t(7, 5), [1], correction=1)],
    "std": [_call(aten.std.correction, _t(7, 5), [0], correction=1, keepdim=True)],
    "_softmax": [_call(aten._softmax.default, _t(6, 5), -1, False)],
    "_safe_softmax": [_call(aten._safe_softmax.default, _t(6, 5), -1)],
    "_softmax_backward_data": [
        _call(aten._softmax_backward_data.default, _t(6, 5), _t(6, 5) * 2, -1, torch.float32)
    ],
    "_log_softmax_backward_data": [
        _call(aten._log_softmax_backward_data.default, _t(6, 5), _t(6, 5) * 2, -1, torch.float32)
    ],
    "cumsum": [_call(aten.cumsum.default, _t(6, 5), 1)],
    **batched_samples.SAMPLES,
    **network_samples.SAMPLES,
    "flip": [_call(aten.flip.default, _t(6, 5), [1])],
    "native_layer_norm": [
        _call(aten.native_layer_norm.default, _t(6, 5, 4), [4], _t(4), _t(4) * 2, 1e-5),
        _call(aten.native_layer_norm.default, _t(6, 5, 4), [5, 4], None, None, 1e-5),
    ],
    "native_layer_norm_backward": [
        _layer_norm_backward([True, True, True]),
        _layer_norm_backward([True, False, True]),
    ],
    "_to_copy": [
        _call(aten._to_copy.default, _t(6, 5), dtype=torch.float64),
        _call(aten._to_copy.default, _t(6, 5) * 9, dtype=torch.int64),
    ],
    "copy": [_call(aten.copy_.default, _t(6, 5), _t(6, 5) * 2)],
    "masked_fill": [
        _call(aten.masked_fill.Scalar, _t(6, 5), _t(6, 5) > 0, 2.5),
        _call(aten.masked_fill_.Scalar, _t(6, 5), _t(5) > 0, 2.5),
    ],
    "ones_like": [_call(aten.ones_like.default, _t(6, 5))],
    "zeros_like": [_call(aten.zeros_like.default, _t(6, 5))],
    "resize": [_call(aten.resize_.default, _t(6, 5), [6, 5])],
    "_new_zeros_with_same_feature_meta": [
        _call(aten._new_zeros_with_same_feature_meta.default, _t(6, 5), _t(6, 5)),
    ],
    "new_zeros": [
        _call(aten.new_zeros.default, _t(6, 5), [6, 5]),
        _call(aten.new_zeros.default, _t(6, 5), [3]),
        _call(aten.new_zeros.default, _t(6, 5), [6, 7]),
    ],
    "new_ones": [_call(aten.new_ones.default, _t(6, 5), [6, 5])],
    "new_full": [_call(aten.new_full.default, _t(6, 5), [6, 5], 2.5)],
    "new_empty": [_call(aten.new_empty.default, _t(6, 5), [6, 5], compare_values=False)],
    "new_empty_strided": [
        _call(aten.new_empty_strided.default, _t(6, 5), [6, 5], [5, 1], compare_values=False)
    ],
    "rand_like": [_call(aten.rand_like.default, _t(7, 5))],
    "bernoulli.p": [_call(aten.bernoulli.p, _t(7, 5), 0.4)],
    "bernoulli.Tensor": [
        _call(aten.bernoulli_.Tensor, _t(7, 5), _t(5).sigmoid()),
        _call(aten.bernoulli.Tensor, _t(7, 5), _t(7, 5).sigmoid()),
    ],
    "normal_functional": [_call(aten.normal_functional.default, _t(7, 5), 1.0, 2.0)],
    "normal.Tensor_Tensor": [_call(aten.normal.Tensor_Tensor, _t(7, 5), _t(5).sigmoid())],
    "normal.float_Tensor": [_call(aten.normal.float_Tensor, 1.0, _t(7, 5).sigmoid())],
    "random": [_call(aten.random_.default, _t(7, 5))],
    "random.to": [_call(aten.random_.to, _t(7, 5), 9)],
    "random.from": [_call(getattr(aten.random_, "from"), _t(7, 5), 3, 9)],
    "randint_like.low_generator_dtype": [
        _call(aten.randint_like.low_generator_dtype, _t(7, 5), 3, 9, generator=None)
    ],
    "native_dropout": [_call(aten.native_dropout.default, _t(7, 5), 0.4, True)],
    "poisson": [_call(aten.poisson.default, _t(7, 5).abs() * 4)],
    "binomial": [_call(aten.binomial.default, _t(7, 5) * 0 + 9, _t(7, 5).sigmoid())],
    "_standard_gamma": [_call(aten._standard_gamma.default, _t(7, 5).sigmoid())],
    "_standard_gamma_grad": [
        _call(aten._standard_gamma_grad.default, _t(7, 5).sigmoid(), _t(7, 5).sigmoid() * 2)
    ],
    "_sample_dirichlet": [_call(aten._sample_dirichlet.default, _t(7, 5).sigmoid())],
    "view": [
        _call(aten.view.default, _t(6, 12), [6, 3, 4]),
        _call(aten.view.default, _t(2, 6, 4), [12, 4]),
        _call(aten.view.default, _t(4, 6), [6, 4]),
        _call(aten.view.default, _t(3, 1, 6), [18]),
        _call(aten.view.default, _t(0, 6), [6, 0]),
    ],
    "_unsafe_view": [_call(aten._unsafe_view.default, _t(6, 12), [6, 3, 4])],
    "reshape": [_call(aten.reshape.default, _t(6, 12), [72])],
    "_reshape_alias": [_call(aten._reshape_alias.default, _t(6, 12), [72], [1])],
    "permute": [_call(aten.permute.default, _t(6, 5, 4), [2, 0, -2])],
    "transpose": [_call(aten.transpose.int, _t(6, 5, 4), -1, 0)],
    "t": [_call(aten.t.default, _t(6, 5)), _call(aten.t.default, _t(6))],
    "squeeze": [
        _call(aten.squeeze.default, _t(6, 1, 5)),
        _call(aten.squeeze.dim, _t(6, 1, 5), 1),
        _call(aten.squeeze.dims, _t(6, 1, 5), [0, 1]),
    ],
    "select": [_call(aten.select.int, _t(6, 5), 0, 2)],
    "split": [_call(aten.split.Tensor, _t(6, 5), 2, -1)],
    "split_with_sizes": [_call(aten.split_with_sizes.default, _t(6, 5), [2, 4])],
    "unbind": [_call(aten.unbind.int, _t(6, 5), 1)],
    "cat": [_call(aten.cat.default, [_t(6, 5), _t(6, 2)], 1)],
    "stack": [_call(aten.stack.default, [_t(6, 5), _t(6, 5) * 2], 1)],
    "index_select": [
        _call(aten.index_select.default, _t(7, 5), 0, _ids(7, 4)),
        _call(aten.index_select.default, _t(2, 5), -2, _ids(2, 6)),
        _call(aten.index_select.default, _t(4, 5, 3), 1, torch.tensor(2)),
    ],
    "gather": [
        _call(aten.gather.default, _t(7, 5), 0, _ids(7, 4, 5)),
        _call(aten.gather.default, _t(2, 5), 1, _ids(5, 2, 6)),
        _call(aten.gather.default, _t(4, 5), 1, _ids(5, 3, 5)),
    ],
    "index": [
        _call(aten.index.Tensor, _t(7, 5, 4), [_ids(7, 4)]),
        _call(aten.index.Tensor, _t(7, 5, 4), [None, _ids(5, 4) - 2, _ids(4, 3, 1)]),
        _call(aten.index.Tensor, _t(2, 5, 4), [_ids(2, 6), None, _ids(4, 6)]),
    ],
    "_unsafe_index": [_call(aten._unsafe_index.Tensor, _t(7, 5), [None, _ids(5, 4)])],
    "scatter": [
        _call(aten.scatter.src, _t(7, 5), 0, _rows(7, 4, 5), _t(4, 5)),
        _call(aten.scatter.value, _t(2, 5), 1, _rows(5, 2, 3), 1.5),
        _call(aten.scatter_.src, _t(7, 5), 0, _rows(7, 4, 3), _t(5, 4)),
        _call(aten.scatter.reduce, _t(7, 5), 0, _ids(7, 4, 5), _t(4, 5), reduce="add"),
    ],
    "scatter_reduce": [
        _call(aten.scatter_reduce.two, _t(7, 5), 0, _ids(7, 9, 5), _t(9, 5), how, include_self=own)
        for how in ("sum", "prod", "mean", "amax")
        for own in (True, False)
    ],
    "index_fill": [
        _call(aten.index_fill.int_Scalar, _t(7, 5), 0, torch.tensor([5, 0, 3]), 1.5),
        _call(aten.index_fill_.int_Tensor, _t(2, 5), 1, torch.tensor([0, 3]), torch.tensor(2.5)),
    ],
    "index_reduce": [
        _call(aten.index_reduce.default, _t(7, 5), 0, _ids(7, 4), _t(4, 5), reduce)
        for reduce in ("prod", "mean", "amax", "amin")
    ],
    "index_put": [
        _call(aten.index_put.default, _t(7, 5, 4), [torch.tensor([6, 0, -4])], _t(3, 5, 4)),
        _call(aten.index_put_.default, _t(7, 5, 4), [None, _ids(5, 6), _ids(4, 6)], _t(7, 6), True),
        _call(aten.index_put.default, _t(2, 5), [torch.tensor([1]), torch.tensor([3])], _t(1)),
        _call(aten.index_put.default, _t(6, 5), [_t(6, 5) > 0], _t(1)),
    ],
    "_unsafe_index_put": [
        _call(aten._unsafe_index_put.default, _t(7, 5), [torch.tensor([6, 0])], _t(2, 5))
    ],
    "_index_put_impl": [
        _call(aten._index_put_impl_.default, _t(7, 5), [torch.tensor([6, 0])], _t(2, 5))
    ],
    "searchsorted": [
        _call(aten.searchsorted.Tensor, _t(7).sort()[0], _t(5, 4)),
        _call(aten.searchsorted.Tensor, _t(2, 7).sort()[0], _t(2, 5), right=True),
        _call(aten.searchsorted.Tensor, _t(7), _t(5), sorter=_t(7).argsort()),
        _call(aten.searchsorted.Scalar, _t(7).sort()[0], 0.5),
    ],
    "bucketize": [
        _call(aten.bucketize.Tensor, _t(5, 4), _t(7).sort()[0]),
        _call(aten.bucketize.Scalar, 0.5, _t(7).sort()[0]),
    ],
    "isin": [
        _call(aten.isin.Tensor_Tensor, _ids(9, 5, 4), _ids(9, 7)),
        _call(aten.isin.Tensor_Tensor, _ids(9, 5, 4), _ids(9, 7), invert=True),
        _call(aten.isin.Tensor_Scalar, _ids(9, 5), 3),
        _call(aten.isin.Scalar_Tensor, 3, _ids(9, 7)),
    ],
    "histc": [
        _call(aten.histc.default, _t(7, 5), 4, -1, 1),
        _call(aten.histc.default, _t(7, 5), 4),
    ],
    "_unique": [_call(aten._unique.default, _ids(4, 7, 5))],
    "unique_dim": [_call(aten.unique_dim.default, _ids(2, 7, 2), 0)],
    "bincount": [_call(aten.bincount.default, _ids(4, 7))],
    "diagonal_copy": [
        _call(aten.diagonal_copy.default, _t(7, 5)),
        _call(aten.diagonal_copy.default, _t(5, 7, 3), -2, 1, 0),
        _call(aten.diagonal_copy.default, _t(4, 6) > 0, 3),
    ],
    "diagonal_scatter": [
        _call(aten.diagonal_scatter.default, _t(7, 5), _t(5) * 3),
        _call(aten.diagonal_scatter.default, _t(5, 7, 3), _t(3, 4), 1, 1, 0),
    ],
    "trace": [_call(aten.trace.default, _t(7, 5)), _call(aten.trace.default, _ids(9, 2, 4))],
    "slice_scatter": [
        _call(aten.slice_scatter.default, _t(7, 5), _t(2, 5), 0, 1, 6, 3),
        _call(aten.slice_scatter.default, _t(7, 5), _t(7, 5) * 2),
        _call(aten.slice_scatter.default, _t(2, 5), _t(2, 2), 1, -2, None),
    ],
    "select_scatter": [
        _call(aten.select_scatter.default, _t(7, 5), _t(5), 0, -2),
        _call(aten.select_scatter.default, _t(2, 5), _t(2), 1, 3),
    ],
    **{
        name: [
            _call(op, *tensors, *rest)
            for tensors in ([_t(7, 5), _t(7, 5) * 2], [_t(2, 5), _t(2, 5) * 2])
            for rest in ([0], [1], [2])
        ]
        for name, op in {
            "mse_loss": aten.mse_loss.default,
            "smooth_l1_loss": aten.smooth_l1_loss.default,
            "huber_loss": aten.huber_loss.default,
            "soft_margin_loss": aten.soft_margin_loss.default,
        }.items()
    },
    "binary_cross_entropy": [
        _call(aten.binary_cross_entropy.default, _t(7, 5).sigmoid(), _t(7, 5).sigmoid(), _t(5), how)
        for how in (0, 1, 2)
    ],
    "binary_cross_entropy_with_logits": [
        _call(
            aten.binary_cross_entropy_with_logits.default,
            *(_t(7, 5), _t(7, 5).sigmoid(), _t(7, 5) * 2, _t(5), how),
        )
        for how in (0, 1, 2)
    ],
    **{
        name: [
            _call(
                op,
                _t(7, 5) if how == 0 else _t(1)[0],
                _t(7, 5),
                _t(7, 5) * 2,
                *rest[:0],
                how,
                *rest,
            )
            for how in (0, 1, 2)
        ]
        for name, (op, *rest) in {
            "mse_loss_backward": (aten.mse_loss_backward.default,),
            "smooth_l1_loss_backward": (aten.smooth_l1_loss_backward.default, 1.0),
            "huber_loss_backward": (aten.huber_loss_backward.default, 1.0),
            "soft_margin_loss_backward": (aten.soft_margin_loss_backward.default,),
        }.items()
    },
    # Their mean sums one number over the ranks, see operators/test_loss.py.
    "nll_loss_forward": [
        _call(aten.nll_loss_forward.default, _t(*shape, 5), _ids(5, *shape), weight, how, 1)
        for shape in ((7,), (2,), ())
        for weight in (None, _positive(5))
        for how in (0, 2)
    ],
    "nll_loss2d_forward": [
        _call(aten.nll_loss2d_forward.default, _t(2, 5, 4, 3), _ids(5, 2, 4, 3), None, 2, 1)
    ],
    "nll_loss_backward": [
        _call(
            aten.nll_loss_backward.default,
            *(_t(7) if how == 0 else _t(1)[0], _t(7, 5), _ids(5, 7), _positive(5), how, 1),
            _positive(1)[0],
        )
        for how in (0, 1, 2)
    ],
    **{
        f"{name.format(own)}{end}": _resampled(f"{name.format(own)}{end}", own)
        for name, own in (
            ("upsample_nearest{}d", 2),
            ("upsample_linear{}d", 1),
            ("upsample_bicubic{}d", 2),
            ("_upsample_bicubic{}d_aa", 2),
            ("_upsample_lanczos{}d_aa", 2),
            ("_upsample_nearest_exact{}d", 3),
        )
        for end in ("", "_backward")
    },
    "affine_grid_generator": [
        _call(aten.affine_grid_generator.default, _t(4, 2, 3), [4, 3, 2, 5], False)
    ],
    "convolution": [
        _convolution(_t(2, 4, 5, 6), _t(6, 4, 3, 2), _t(6), stride=2, padding=1),
        _convolution(_t(2, 4, 7), _t(3, 4, 2), None),
        _convolution(_t(5, 6, 7), _t(6, 2, 3), _t(6), groups=3),
        _convolution(_t(5, 6, 7), _t(6, 2, 3), _t(6), groups=3, transposed=True),
        _convolution(_t(2, 4, 5, 6), _t(4, 7, 3, 2), _t(7), transposed=True),
    ],
    "convolution_backward": [
        _convolution_backward(_t(2, 4, 5, 6), _t(6, 4, 3, 2), [True, True, True], padding=1),
        _convolution_backward(_t(2, 4, 5, 6), _t(6, 4, 3, 2), [True, True, False]),
        _convolution_backward(_t(5, 6, 7), _t(6, 2, 3), [True, True, True], groups=3),
        _convolution_backward(_t(5, 4, 7), _t(4, 2, 3), [True, True, True], transposed=True),
    ],
    **{
        name: [_call(op, _complex(5, 4, 6) if "c2" in name else _t(5, 4, 6), [1], *rest)]
        for name, (op, *rest) in {
            "_fft_c2c": (aten._fft_c2c.default, 0, True),
            "_fft_r2c": (aten._fft_r2c.default, 0, True),
            "_fft_c2r": (aten._fft_c2r.default, 0, 6),
        }.items()
    },
    "nansum": [_call(aten.nansum.default, _t(7, 5), [0]), _call(aten.nansum.default, _t(2, 5))],
    "linalg__powsum": [_call(aten.linalg__powsum.default, _t(7, 5), 3, [0])],
    "all": [_call(aten.all.default, _t(2, 5) > -9), _call(aten.all.dim, _t(7, 5) > -1, 0)],
    "count_nonzero": [_call(aten.count_nonzero.dim_IntList, _ids(2, 7, 5), [0])],
    "var_mean": [_call(aten.var_mean.correction, _t(7, 5), [1], correction=1)],
    "std_mean": [_call(aten.std_mean.correction, _t(7, 5), [0], correction=1, keepdim=True)],
    "nanmedian": [_call(aten.nanmedian.dim, _t(7, 5), 1)],
    "repeat": [_call(aten.repeat.default, _t(6, 5), [2, 1, 3])],
    "roll": [_call(aten.roll.default, _t(6, 5), [1], [1]), _call(aten.roll.default, _t(6, 5), [2])],
    "diagonal": [_call(aten.diagonal.default, _t(6, 5, 4), 1, 0, -1)],
    "diag_embed": [_call(aten.diag_embed.default, _t(6, 5, 4), 1, 0, -2)],
    "view.dtype": [
        _call(aten.view.dtype, _t(6, 8), torch.int32),
        _call(aten.view.dtype, _t(6, 8), torch.int16),
        _call(aten.view.dtype, _t(6, 8), torch.float64),
    ],
    "view_as_real": [_call(aten.view_as_real.default, _complex(6, 5))],
    "_conj": [_call(aten._conj.default, _complex(6, 5))],
    "_neg_view": [_call(aten._neg_view.default, _t(6, 5))],
    "unsafe_split": [_call(aten.unsafe_split.Tensor, _t(6, 5), 2, -1)],
    "unsafe_split_with_sizes": [_call(aten.unsafe_split_with_sizes.default, _t(6, 5), [2, 4])],
    "rsub": [_call(aten.rsub.Tensor, _t(6, 5), _t(5)), _call(aten.rsub.Scalar, _t(6, 5), 2.5)],
    "complex": [_call(aten.complex.default, _t(6, 5), _t(6, 5) * 2)],
    "polar": [_call(aten.polar.default, _positive(6, 5), _t(6, 5))],
    "hardswish": _unary("hardswish"),
    "floor_divide": [_call(aten.floor_divide.default, _t(6, 5) * 9, _positive(5))],
    "_prelu_kernel": [_call(aten._prelu_kernel.default, _t(6, 5), _positive(1, 5))],
    "_prelu_kernel_backward": [
        _call(aten._prelu_kernel_backward.default, _t(6, 5), _t(6, 5) * 2, _positive(1, 5))
    ],
    "hardswish_backward": _gradient(aten.hardswish_backward.default),
    "mish_backward": _gradient(aten.mish_backward.default),
    "_scaled_dot_product_flash_attention_for_cpu": [
        _call(_flash, *_attention(), 0.0, True),
        _call(_flash, *_attention(), 0.0, False, attn_mask=_t(4, 5)),
        _call(_flash, _t(3, 6, 4, 8), _t(3, 3, 5, 8), _t(3, 3, 5, 8) * 2, 0.0, False),
        _call(_flash, _t(3, 6, 4, 8), _t(3, 1, 5, 8), _t(3, 1, 5, 8) * 2, 0.0, True),
        _call(_flash, _t(3, 6, 4, 8), _t(3, 2, 5, 8), _t(3, 2, 5, 8) * 2, 0.0, True),
        _call(_flash, *_attention(), 0.0, False, attn_mask=_t(3, 1, 4, 5)),
    ],
    "_scaled_dot_product_flash_attention_for_cpu_backward": [
        _attention_backward(causal=True),
        _attention_backward(causal=False),
    ],
}
