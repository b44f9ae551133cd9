"""The only file that issues communication: one function a collective, on plain local tensors.

Each takes the contiguous local tensor and the mesh axis to communicate over, blocks until the
result is there, and returns it. Sizes are in elements along dim 0. Called by
`redistribute.execute` and by what is built from its steps; the functional operators of c10d are
used because they are seen by tracing and by every recorder.
"""

from __future__ import annotations

import torch

from dtensor_core.mesh import DeviceMesh

_ops = torch.ops._c10d_functional


def _group(mesh: DeviceMesh, axis: int) -> str:
    return mesh.get_group(axis).group_name


def all_reduce(local: torch.Tensor, reduce_op: str, mesh: DeviceMesh, axis: int) -> torch.Tensor:
    """The reduction of every rank's tensor."""
    return _ops.wait_tensor(_ops.all_reduce(local, reduce_op, _group(mesh, axis)))


def all_gather(local: torch.Tensor, mesh: DeviceMesh, axis: int) -> torch.Tensor:
    """Every rank's tensor, joined along dim 0 in order of coordinate; shapes must be equal."""
    gathered = _ops.all_gather_into_tensor(local, mesh.size(axis), _group(mesh, axis))
    return _ops.wait_tensor(gathered)


def reduce_scatter(
    local: torch.Tensor, reduce_op: str, mesh: DeviceMesh, axis: int
) -> torch.Tensor:
    """This rank's equal part, along dim 0, of the reduction of every rank's tensor."""
    scattered = _ops.reduce_scatter_tensor(local, reduce_op, mesh.size(axis), _group(mesh, axis))
    return _ops.wait_tensor(scattered)


def all_to_all(
    local: torch.Tensor,
    output_sizes: list[int],
    input_sizes: list[int],
    mesh: DeviceMesh,
    axis: int,
) -> torch.Tensor:
    """What each rank has for this one, joined along dim 0 in order of coordinate."""
    exchanged = _ops.all_to_all_single(local, output_sizes, input_sizes, _group(mesh, axis))
    return _ops.wait_tensor(exchanged)


def broadcast(local: torch.Tensor, source: int, mesh: DeviceMesh, axis: int) -> torch.Tensor:
    """The tensor of the rank at coordinate `source` of the axis."""
    return _ops.wait_tensor(_ops.broadcast(local, source, _group(mesh, axis)))


def scatter(
    parts: list[torch.Tensor] | None, out: torch.Tensor, source: int, mesh: DeviceMesh, axis: int
) -> torch.Tensor:
    """The part that the rank at coordinate `source` has for this one, written to `out`."""
    group = mesh.get_group(axis)
    torch.distributed.scatter(out, parts, group=group, group_src=source)
    return out
