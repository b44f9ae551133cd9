"""Sample calls of operators on trailing dims: two batch dims, one shorter than the ranks."""

from __future__ import annotations

from typing import Any

import torch

from tests.dtensor_core.operators.brute_force import Sample

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
"""Operators of a single matrix; torch 2.14 no longer has `cholesky`."""

SAMPLES: dict[str, list[Sample]] = {
    **{name: _matrices(name) for name in _SINGLE.split() if hasattr(aten, name)},
    "linalg_householder_product": [
        _call(aten.linalg_householder_product.default, _t(4, 2, 3, 3), _t(4, 2, 3))
    ],
    "linalg_solve_triangular": [
        _call(aten.linalg_solve_triangular.default, _definite(4, 1), _t(4, 2, 3, 2), upper=True)
    ],
    "linalg_lu_solve": [_call(aten.linalg_lu_solve.default, *_factored(), _t(4, 2, 3, 2))],
    "lu_unpack": [_call(aten.lu_unpack.default, *_factored())],
    "ormqr": [_call(aten.ormqr.default, *aten.geqrf(_definite(4, 2)), _t(4, 2, 3, 3), True)],
    "_cdist_forward": [_call(aten._cdist_forward.default, _t(4, 1, 3, 2), _t(2, 5, 2), 2.0, None)],
    "reflection_pad3d": [_call(aten.reflection_pad3d.default, _t(4, 2, 4, 5, 6), [1] * 6)],
    "replication_pad3d": [_call(aten.replication_pad3d.default, _t(4, 2, 4, 5, 6), [1] * 6)],
    "upsample_linear1d": [_call(aten.upsample_linear1d.default, _t(4, 2, 5), [8], False)],
    "upsample_bicubic2d": [_call(aten.upsample_bicubic2d.default, _t(4, 2, 5, 6), [8, 7], True)],
    "reflection_pad3d_backward": [
        _call(aten.reflection_pad3d_backward.default, _t(4, 2, 6, 7, 8), _t(4, 2, 4, 5, 6), [1] * 6)
    ],
    "replication_pad3d_backward": [
        _call(
            aten.replication_pad3d_backward.default, _t(4, 2, 6, 7, 8), _t(4, 2, 4, 5, 6), [1] * 6
        )
    ],
    "upsample_linear1d_backward": [
        _call(aten.upsample_linear1d_backward.default, _t(4, 2, 8), [8], [4, 2, 5], False)
    ],
    "upsample_bicubic2d_backward": [
        _call(aten.upsample_bicubic2d_backward.default, _t(4, 2, 8, 7), [8, 7], [4, 2, 5, 6], False)
    ],
    "pixel_shuffle": [_call(aten.pixel_shuffle.default, _t(4, 2, 4, 5, 6), 2)],
    "channel_shuffle": [_call(aten.channel_shuffle.default, _t(4, 6, 4, 5), 2)],
}
