"""Layout functions and a context, under the module name that programs import them from."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dtensor_core import layout
from dtensor_core.debug.explicit import ExplicitRedistributionContext
from dtensor_core.mesh import DeviceMesh, mesh_shape
from dtensor_core.placement import Placement
from dtensor_core.validation import global_meta, normalize_placements

__all__ = [
    "ExplicitRedistributionContext",
    "compute_global_tensor_info",
    "compute_local_shape_and_global_offset",
]


def compute_local_shape_and_global_offset(
    global_shape: Sequence[int],
    mesh: DeviceMesh,
    placements: Sequence[Placement],
    skip_offset: bool = False,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape of this rank's shard, and its offset in each dimension.

    An empty shard starts at the dimension's end, a strided shard at its first piece. A rank outside
    of the mesh gets `((0,), ())`; with `skip_offset` the offset is empty.
    """
    coords = mesh.get_coordinate()
    if coords is None:
        return (0,), ()
    normal = normalize_placements(placements, mesh, len(global_shape))
    sizes = mesh_shape(mesh)
    local = layout.local_shape(global_shape, normal, sizes, coords)
    if skip_offset:
        return local, ()
    held = [
        layout.held_extents(size, layout.shardings_of(normal, sizes, coords, dim))
        for dim, size in enumerate(global_shape)
    ]
    offsets = tuple(
        extents[0].offset if local[dim] else global_shape[dim] for dim, extents in enumerate(held)
    )
    return local, offsets


def compute_global_tensor_info(
    tensor: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement]
) -> tuple[list[int], list[int]]:
    """Return the global shape and stride, assuming that all shards are like this rank's."""
    normal = normalize_placements(placements, mesh, tensor.ndim)
    meta = global_meta(tensor, mesh, normal, None, None)
    return list(meta.shape), list(meta.stride)
