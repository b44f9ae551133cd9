"""Distribution of one rank's data to all ranks: the communication of `distribute_tensor`.

Each mesh axis in turn scatters or broadcasts from its coordinate `source`. All data therefore comes
from the rank that has this coordinate on every axis.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dtensor_core import collectives, layout, observe
from dtensor_core.mesh import DeviceMesh, axis_name, channel
from dtensor_core.placement import Placement, Replicate
from dtensor_core.redistribute.execute import execute, origin_of
from dtensor_core.redistribute.plan import plan_between
from dtensor_core.redistribute.shard_overlap import common, part, take
from dtensor_core.spec import Spec


def share(full: torch.Tensor, spec: Spec, source: int, operator: str) -> torch.Tensor:
    """Return this rank's part of the source rank's full tensor, laid out as `spec`."""
    local = full
    coords = spec.coords
    if coords is None:
        return full.new_zeros(spec.local_shape)
    for axis, placement in enumerate(spec.placements):
        if spec.mesh_shape[axis] == 1:
            continue
        if placement.sharded_dim is None:
            local = broadcast(local, spec.mesh, axis, source, operator)
        else:
            local = _scatter(local, placement, spec, axis, source, operator)
    return _as_partial_sums(local, spec, operator)


def keep(full: torch.Tensor, spec: Spec, operator: str) -> torch.Tensor:
    """Return this rank's part of its own full tensor, without communication."""
    if spec.coords is None:
        return full.new_zeros(spec.local_shape)
    steps = plan_between(spec.replicated(), spec)
    return execute(full, spec.replicated(), steps, origin_of(operator))


def broadcast(
    local: torch.Tensor, mesh: DeviceMesh, axis: int, source: int, operator: str
) -> torch.Tensor:
    """Return the tensor of the rank at coordinate `source` of the axis."""
    line = channel(mesh, (axis,))
    root = line.coords.index((source,))
    with observe.announced(reason_of_transfer(operator, "broadcast", mesh, axis, local)):
        return collectives.wait(collectives.broadcast(local.contiguous(), root, line.name))


def _as_partial_sums(local: torch.Tensor, spec: Spec, operator: str) -> torch.Tensor:
    """Make partial sums of a tensor that is replicated along the Partial axes."""
    full = spec.with_placements(
        [Replicate() if placement.is_partial() else placement for placement in spec.placements]
    )
    return execute(local, full, plan_between(full, spec), origin_of(operator))


def _scatter(
    local: torch.Tensor, placement: Placement, spec: Spec, axis: int, source: int, operator: str
) -> torch.Tensor:
    """Return the shard of this coordinate; shards travel padded to the longest."""
    dim = placement.sharded_dim
    assert dim is not None
    assert spec.coords is not None
    coord, ranks = spec.coords[axis], spec.mesh_shape[axis]
    line = channel(spec.mesh, (axis,))
    pieces = split(local, placement, ranks)
    # Along a single axis, coordinate 0 has the longest shard, strided or not.
    longest = list(pieces[0].shape)
    out = local.new_empty(longest)
    parts = None
    if coord == source:
        parts = [_padded(pieces[place], longest) for (place,) in line.coords]
    # Stands for all parts in the announcement of bytes, and takes no memory.
    sent = local.new_empty((ranks, *longest), device="meta")
    root = line.coords.index((source,))
    with observe.announced(reason_of_transfer(operator, "scatter", spec.mesh, axis, sent)):
        received = collectives.scatter(parts, out, root, line.group)
    return received.narrow(dim, 0, pieces[coord].shape[dim]).contiguous()


def split(tensor: torch.Tensor, placement: Placement, ranks: int) -> list[torch.Tensor]:
    """Return the shard of every coordinate, along the dimension that `placement` shards."""
    dim = placement.sharded_dim
    assert dim is not None
    full = (layout.Extent(0, tensor.shape[dim]),)
    blocks = placement.num_blocks
    pieces: list[torch.Tensor] = []
    for coord in range(ranks):
        held = layout.held_extents(tensor.shape[dim], (layout.AxisSharding(ranks, coord, blocks),))
        runs = common(full, held)
        pieces.append(take(tensor, part(tensor.shape, [(dim, runs)])))
    return pieces


def _padded(piece: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    if list(piece.shape) == list(shape):
        return piece.contiguous()
    padded = piece.new_zeros(shape)
    padded[tuple(slice(0, size) for size in piece.shape)] = piece
    return padded


def reason_of_transfer(
    operator: str,
    step: str,
    mesh: DeviceMesh,
    axis: int,
    payload: torch.Tensor,
    expert_rows: tuple[int, ...] = (),
) -> observe.Reason:
    """Return the reason of data sent from one rank of an axis to all."""
    return observe.Reason(
        operator=operator,
        argument="tensor",
        source="on one rank",
        target="on all ranks",
        step=step,
        axis=axis_name(mesh, axis),
        payload_bytes=payload.numel() * payload.element_size(),
        expert_rows=expert_rows,
    )
