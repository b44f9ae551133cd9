"""How the gradient of a tensor lies that crosses between the local world and the mesh's.

A shard's gradient comes back as that shard, a replica's as a replica; addends receive the whole
gradient, since the sum's gradient is that of every addend. Used by the autograd functions of
`tensor`.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from dtensor_core.layout import stride_like
from dtensor_core.placement import Placement
from dtensor_core.redistribute.transitions import gradient_placement
from dtensor_core.spec import Spec, TensorMeta


@lru_cache(maxsize=16384)
def gradient_placements(placements: tuple[Placement, ...]) -> tuple[Placement, ...]:
    """Where a gradient comes from that crosses to the local world: addends receive it whole."""
    return tuple(gradient_placement(placement) for placement in placements)


@lru_cache(maxsize=16384)
def gradient_spec(
    spec: Spec, placements: tuple[Placement, ...], stride: tuple[int, ...], dtype: torch.dtype
) -> Spec:
    """The spec of a gradient whose local part has `stride`."""
    outside = spec.coords is None
    strides = spec.stride if outside else stride_like(spec.shape, stride)
    return Spec(spec.mesh, placements, TensorMeta(spec.shape, strides, dtype))


@lru_cache(maxsize=16384)
def gradient_target(
    forward: tuple[Placement, ...], gradient: tuple[Placement, ...]
) -> tuple[Placement, ...]:
    """Where a gradient goes: to the forward's placements; addends get it whole, or as addends."""
    return tuple(
        before if before is now else gradient_placement(before)
        for before, now in zip(forward, gradient, strict=True)
    )
