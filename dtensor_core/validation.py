"""Validation and normalization of callers' placements and of global metadata.

Every public function that takes placements passes them through here first. torch's placements
become ours, negative dims count from the end, and misfits are refused. Called by `tensor`, `api`,
`factories`, `parallel` and `experimental`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from dtensor_core.errors import PlacementError
from dtensor_core.mesh import DeviceMesh
from dtensor_core.placement import Partial, Placement, Replicate, Shard, _StridedShard, as_placement
from dtensor_core.spec import TensorMeta


def normalize_placements(
    placements: Sequence[Placement] | None, mesh: DeviceMesh, ndim: int
) -> tuple[Placement, ...]:
    """Return one placement per mesh axis, with non-negative dims; None means Replicate everywhere.

    Raises:
        PlacementError: The placements don't fit the mesh or the tensor (a ValueError).
    """
    if placements is None:
        return (Replicate(),) * mesh.ndim
    if isinstance(placements, Placement) or len(placements) != mesh.ndim:
        raise PlacementError(
            f"placements {placements}",
            found=f"a mesh of {mesh.ndim} axes, {mesh}",
            why="`placements` must have the same length as the mesh has axes",
            hint="give one placement per mesh axis",
        )
    if torch.compiler.is_dynamo_compiling():  # which warns of caches
        return _normalized.__wrapped__(tuple(placements), ndim)
    return _normalized(tuple(placements), ndim)


@lru_cache(maxsize=16384)
def _normalized(placements: tuple[Placement, ...], ndim: int) -> tuple[Placement, ...]:
    normal = tuple([_normalize(placement, ndim) for placement in placements])
    reductions = {each.reduce_op for each in normal if isinstance(each, Partial)}
    if len(reductions) > 1 and reductions != {"sum", "avg"}:
        raise PlacementError(
            f"placements {placements}",
            found="Mixed Partial reduce types: " + ", ".join(sorted(reductions)),
            why="these reductions do not commute; only sum and avg may be mixed",
            hint="reduce all but one first",
        )
    return normal


def _normalize(placement: Placement, ndim: int) -> Placement:
    placement = as_placement(placement)
    dim = placement.sharded_dim
    if dim is None:
        return placement
    if not -ndim <= dim < ndim:
        raise PlacementError(
            f"a tensor of {ndim} dims placed {placement!r}",
            found=f"dims {-ndim} to {ndim - 1}" if ndim else "a scalar, which has no dim",
            hint="shard a dim that the tensor has, or use Replicate()",
        )
    if dim >= 0:
        return placement
    if isinstance(placement, _StridedShard):
        return _StridedShard(dim + ndim, split_factor=placement.split_factor)
    return Shard(dim + ndim)


def global_meta(
    local: torch.Tensor,
    mesh: DeviceMesh,
    placements: Sequence[Placement],
    shape: Sequence[int] | None,
    stride: Sequence[int] | None,
) -> TensorMeta:
    """Return the global metadata: as given, or as if all shards were like this rank's.

    Raises:
        PlacementError: The given shape or stride has another number of dims.
    """
    if shape is not None and stride is not None:
        is_part = mesh.get_coordinate() is not None  # other ranks hold nothing, of any shape
        if len(shape) != len(stride) or (is_part and local.ndim != len(shape)):
            raise PlacementError(
                f"a DTensor of shape={tuple(shape)} and stride={tuple(stride)}",
                found=f"a local tensor of shape {tuple(local.shape)}",
                why="shape and stride need one entry per dim of the local tensor",
                hint="pass the shape and the stride of the full tensor",
            )
        return TensorMeta(torch.Size(shape), tuple(stride), local.dtype)
    sizes, strides = list(local.shape), list(local.stride())
    for axis, placement in enumerate(placements):
        dim = placement.sharded_dim
        if dim is None or not sizes:
            continue
        for other in range(len(strides)):
            if other != dim and strides[other] >= strides[dim] * local.shape[dim]:
                strides[other] *= mesh.size(axis)
        sizes[dim] *= mesh.size(axis)
    return TensorMeta(torch.Size(sizes), tuple(strides), local.dtype)
