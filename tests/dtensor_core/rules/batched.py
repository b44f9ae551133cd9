"""Sample calls of the operators on trailing dims: two batch dims, one shorter than the ranks."""

from __future__ import annotations

from typing import Any

import torch

from tests.dtensor_core.rules.brute_force import Sample

aten = torch.ops.aten


def _t(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + 1))


def _definite(*batch: int) -> torch.Tensor:
    root = _t(*batch, 3, 3)
    return root @ root.mT + torch.eye(3)


def _call(op: Any, *args: Any, **kwargs: Any) -> Sample:
    return Sample(op, args, kwargs)


def _factored() -> tuple[torch.Tensor, torch.Tensor]:
    factors, pivots, _ = aten.linalg_lu_factor_ex(_definite(4, 2))
    return factors, pivots


def _matrices(name: str) -> list[Sample]:
    op = getattr(aten, name)
    return [_call(getattr(op, op.overloads()[0]), _definite(4, 2))]


_SINGLE = (
    "_linalg_svd linalg_inv_ex _linalg_det _linalg_slogdet _linalg_eigh linalg_eig linalg_qr "
    "linalg_lu_factor_ex linalg_lu linalg_cholesky_ex cholesky cholesky_inverse linalg_matrix_exp "
    "geqrf linalg_ldl_factor_ex"
)
_pooled = aten.max_pool2d_with_indices(_t(4, 2, 5, 6), [2, 2])
_pooled3 = aten.max_pool3d_with_indices(_t(4, 2, 4, 5, 6), [2, 2, 2])
_adapted = aten.adaptive_max_pool2d(_t(4, 2, 5, 6), [2, 2])
_adapted3 = aten.adaptive_max_pool3d(_t(4, 2, 4, 5, 6), [2, 2, 2])
_unpooled = _pooled[0], _pooled[1], [5, 6]

SAMPLES: dict[str, list[Sample]] = {
    **{name: _matrices(name) for name in _SINGLE.split()},
    "cholesky_solve": [_call(aten.cholesky_solve.default, _t(4, 2, 3, 2), _definite(4, 2))],
    "triangular_solve": [_call(aten.triangular_solve.default, _t(4, 2, 3, 2), _definite(4, 2))],
    "linalg_solve_triangular": [
        _call(aten.linalg_solve_triangular.default, _definite(4, 1), _t(4, 2, 3, 2), upper=True)
    ],
    "linalg_lu_solve": [_call(aten.linalg_lu_solve.default, *_factored(), _t(4, 2, 3, 2))],
    "lu_unpack": [_call(aten.lu_unpack.default, *_factored())],
    "linalg_ldl_solve": [
        _call(
            aten.linalg_ldl_solve.default,
            *aten.linalg_ldl_factor_ex(_definite(4, 2))[:2],
            _t(4, 2, 3, 2),
        )
    ],
    "linalg_householder_product": [
        _call(aten.linalg_householder_product.default, *aten.geqrf(_definite(4, 2)))
    ],
    "ormqr": [_call(aten.ormqr.default, *aten.geqrf(_definite(4, 2)), _t(4, 2, 3, 3), True)],
    "_cdist_forward": [_call(aten._cdist_forward.default, _t(4, 1, 3, 2), _t(2, 5, 2), 2.0, None)],
    "_cdist_backward": [
        _call(
            aten._cdist_backward.default,
            *(_t(4, 2, 3, 5), _t(4, 2, 3, 2), _t(4, 2, 5, 2), 1.5),
            aten._cdist_forward(_t(4, 2, 3, 2), _t(4, 2, 5, 2), 1.5, None),
        )
    ],
    "avg_pool2d": [_call(aten.avg_pool2d.default, _t(4, 2, 5, 6), [2, 2])],
    "_adaptive_avg_pool2d": [_call(aten._adaptive_avg_pool2d.default, _t(4, 2, 5, 6), [2, 3])],
    "reflection_pad2d": [_call(aten.reflection_pad2d.default, _t(4, 2, 5, 6), [1, 2, 1, 0])],
    "replication_pad2d": [_call(aten.replication_pad2d.default, _t(4, 2, 5, 6), [1, 2, 1, 0])],
    "avg_pool3d": [_call(aten.avg_pool3d.default, _t(4, 2, 4, 5, 6), [2, 2, 2])],
    "_adaptive_avg_pool3d": [
        _call(aten._adaptive_avg_pool3d.default, _t(4, 2, 4, 5, 6), [2, 3, 2])
    ],
    "reflection_pad3d": [_call(aten.reflection_pad3d.default, _t(4, 2, 4, 5, 6), [1] * 6)],
    "replication_pad3d": [_call(aten.replication_pad3d.default, _t(4, 2, 4, 5, 6), [1] * 6)],
    "reflection_pad1d": [_call(aten.reflection_pad1d.default, _t(4, 2, 5), [1, 2])],
    "replication_pad1d": [_call(aten.replication_pad1d.default, _t(4, 2, 5), [1, 2])],
    "upsample_linear1d": [_call(aten.upsample_linear1d.default, _t(4, 2, 5), [8], False)],
    "upsample_bilinear2d": [_call(aten.upsample_bilinear2d.default, _t(4, 2, 5, 6), [8, 7], True)],
    "upsample_bicubic2d": [_call(aten.upsample_bicubic2d.default, _t(4, 2, 5, 6), [8, 7], True)],
    "_upsample_bilinear2d_aa": [
        _call(aten._upsample_bilinear2d_aa.default, _t(4, 2, 5, 6), [8, 7], True)
    ],
    "upsample_trilinear3d": [
        _call(aten.upsample_trilinear3d.default, _t(4, 2, 4, 5, 6), [5, 8, 7], True)
    ],
    "max_pool2d_with_indices": [
        _call(aten.max_pool2d_with_indices.default, _t(4, 2, 5, 6), [2, 2])
    ],
    "adaptive_max_pool2d": [_call(aten.adaptive_max_pool2d.default, _t(4, 2, 5, 6), [2, 3])],
    "max_unpool2d": [_call(aten.max_unpool2d.default, *_unpooled)],
    "max_pool3d_with_indices": [
        _call(aten.max_pool3d_with_indices.default, _t(4, 2, 4, 5, 6), [2, 2, 2])
    ],
    "adaptive_max_pool3d": [_call(aten.adaptive_max_pool3d.default, _t(4, 2, 4, 5, 6), [2, 3, 2])],
    "max_unpool3d": [_call(aten.max_unpool3d.default, *_pooled3, [4, 5, 6], [2, 2, 2], [0, 0, 0])],
    "max_pool2d_with_indices_backward": [
        _call(
            aten.max_pool2d_with_indices_backward.default,
            *(_t(4, 2, 2, 3), _t(4, 2, 5, 6), [2, 2], [2, 2], [0, 0], [1, 1], False, _pooled[1]),
        )
    ],
    "adaptive_max_pool2d_backward": [
        _call(
            aten.adaptive_max_pool2d_backward.default,
            *(_t(4, 2, 2, 2), _t(4, 2, 5, 6), _adapted[1]),
        )
    ],
    "avg_pool2d_backward": [
        _call(
            aten.avg_pool2d_backward.default,
            *(_t(4, 2, 2, 3), _t(4, 2, 5, 6), [2, 2], [2, 2], [0, 0], False, True, None),
        )
    ],
    "_adaptive_avg_pool2d_backward": [
        _call(aten._adaptive_avg_pool2d_backward.default, _t(4, 2, 2, 3), _t(4, 2, 5, 6))
    ],
    "reflection_pad2d_backward": [
        _call(aten.reflection_pad2d_backward.default, _t(4, 2, 7, 8), _t(4, 2, 5, 6), [1] * 4)
    ],
    "replication_pad2d_backward": [
        _call(aten.replication_pad2d_backward.default, _t(4, 2, 7, 8), _t(4, 2, 5, 6), [1] * 4)
    ],
    "max_pool3d_with_indices_backward": [
        _call(
            aten.max_pool3d_with_indices_backward.default,
            *(_t(4, 2, 2, 2, 3), _t(4, 2, 4, 5, 6), [2] * 3, [2] * 3, [0] * 3, [1] * 3, False),
            _pooled3[1],
        )
    ],
    "adaptive_max_pool3d_backward": [
        _call(
            aten.adaptive_max_pool3d_backward.default,
            *(_t(4, 2, 2, 2, 2), _t(4, 2, 4, 5, 6), _adapted3[1]),
        )
    ],
    "avg_pool3d_backward": [
        _call(
            aten.avg_pool3d_backward.default,
            *(_t(4, 2, 2, 2, 3), _t(4, 2, 4, 5, 6), [2] * 3, [2] * 3, [0] * 3, False, True, None),
        )
    ],
    "_adaptive_avg_pool3d_backward": [
        _call(aten._adaptive_avg_pool3d_backward.default, _t(4, 2, 2, 2, 3), _t(4, 2, 4, 5, 6))
    ],
    "reflection_pad3d_backward": [
        _call(aten.reflection_pad3d_backward.default, _t(4, 2, 6, 7, 8), _t(4, 2, 4, 5, 6), [1] * 6)
    ],
    "replication_pad3d_backward": [
        _call(
            aten.replication_pad3d_backward.default, _t(4, 2, 6, 7, 8), _t(4, 2, 4, 5, 6), [1] * 6
        )
    ],
    "reflection_pad1d_backward": [
        _call(aten.reflection_pad1d_backward.default, _t(4, 2, 7), _t(4, 2, 5), [1, 1])
    ],
    "replication_pad1d_backward": [
        _call(aten.replication_pad1d_backward.default, _t(4, 2, 7), _t(4, 2, 5), [1, 1])
    ],
    "upsample_linear1d_backward": [
        _call(aten.upsample_linear1d_backward.default, _t(4, 2, 8), [8], [4, 2, 5], False)
    ],
    "upsample_bilinear2d_backward": [
        _call(
            aten.upsample_bilinear2d_backward.default, _t(4, 2, 8, 7), [8, 7], [4, 2, 5, 6], False
        )
    ],
    "upsample_bicubic2d_backward": [
        _call(aten.upsample_bicubic2d_backward.default, _t(4, 2, 8, 7), [8, 7], [4, 2, 5, 6], False)
    ],
    "upsample_trilinear3d_backward": [
        _call(
            aten.upsample_trilinear3d_backward.default,
            *(_t(4, 2, 5, 8, 7), [5, 8, 7], [4, 2, 4, 5, 6], False),
        )
    ],
    "im2col": [_call(aten.im2col.default, _t(4, 2, 5, 6), [2, 2], [1, 1], [0, 0], [1, 1])],
    "pixel_shuffle": [_call(aten.pixel_shuffle.default, _t(4, 2, 4, 5, 6), 2)],
    "pixel_unshuffle": [_call(aten.pixel_unshuffle.default, _t(4, 2, 4, 6, 6), 2)],
    "channel_shuffle": [_call(aten.channel_shuffle.default, _t(4, 6, 4, 5), 2)],
    "grid_sampler_2d": [
        _call(aten.grid_sampler_2d.default, _t(4, 2, 5, 6), _t(4, 3, 4, 2), 0, 0, False)
    ],
    "grid_sampler_3d": [
        _call(aten.grid_sampler_3d.default, _t(4, 2, 4, 5, 6), _t(4, 3, 4, 2, 3), 0, 0, False)
    ],
}
