"""Placements of the gradients of tensors that cross between local tensors and DTensors.

The gradient of a shard is the same shard, and of a replica a replica. Partial values receive the
full gradient, since each term of a sum has the gradient of the sum. Used by the autograd functions
of `tensor`.
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
    """Return the placements of a gradient that crosses to local tensors.

    These are the forward's placements, with Partial replaced by Replicate.
    """
    return tuple(gradient_placement(placement) for placement in placements)


@lru_cache(maxsize=16384)
def gradient_spec(
    spec: Spec, placements: tuple[Placement, ...], stride: tuple[int, ...], dtype: torch.dtype
) -> Spec:
    """Return the spec of a gradient whose local part has `stride`."""
    outside = spec.coords is None
    strides = spec.stride if outside else stride_like(spec.shape, stride)
    return Spec(spec.mesh, placements, TensorMeta(spec.shape, strides, dtype))


@lru_cache(maxsize=16384)
def gradient_target(
    forward: tuple[Placement, ...], gradient: tuple[Placement, ...]
) -> tuple[Placement, ...]:
    """Return the target placements of a gradient.

    These are the forward's placements, with Partial replaced by Replicate unless the gradient has
    the same Partial.
    """
    return tuple(
        before if before is now else gradient_placement(before)
        for before, now in zip(forward, gradient, strict=True)
    )
