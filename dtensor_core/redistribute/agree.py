"""Whether the ranks' local tensors make up one tensor: what `from_local(run_check=True)` sends.

Every rank hears what all others hold and decides alike; then replicated axes take the data of
their first rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from dtensor_core import collectives, observe
from dtensor_core.errors import PlacementError, four_parts
from dtensor_core.mesh import DeviceMesh, channel
from dtensor_core.placement import Placement
from dtensor_core.redistribute.distribute import announcement, broadcast


def agreed(
    local: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement], *, with_shape: bool
) -> torch.Tensor:
    """The local tensor, with the first rank's data along replicated axes; differentiable.

    Raises PlacementError on every rank unless all have the same dtype and `requires_grad`, and
    `with_shape` the same shape and stride.
    """
    _check_alike(local, mesh, with_shape=with_shape)
    return _made_equal(local, mesh, placements)


def _check_alike(local: torch.Tensor, mesh: DeviceMesh, *, with_shape: bool) -> None:
    """Raise on every rank, unless all ranks' local tensors have the same metadata.

    Fake tensors pass: what other ranks hold is not to be had.
    """
    if isinstance(local, FakeTensor):
        return
    mine = f"{local.dtype}, requires_grad={local.requires_grad}"
    if with_shape:
        mine += f", shape {list(local.shape)}, stride {list(local.stride())}"
    said = _said_by_all(mine, mesh, "from_local")
    ranks: dict[str, list[int]] = {}
    for rank, text in zip(mesh.mesh.flatten().tolist(), said, strict=True):
        ranks.setdefault(text, []).append(rank)
    if len(ranks) > 1:
        raise PlacementError(
            four_parts(
                asked="DTensor.from_local(run_check=True)",
                found="Inconsistent tensor metadata across ranks: "
                + "; ".join(f"{text} on ranks {where}" for text, where in ranks.items()),
                why="the local tensors of all ranks make up one tensor",
                hint="make them alike; for shards of unequal size pass shape and stride",
            )
        )


def _made_equal(
    local: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement]
) -> torch.Tensor:
    """The local tensor, with the first rank's data along replicated axes."""
    equal = local.detach()
    for axis, placement in enumerate(placements):
        if placement.is_replicate() and mesh.size(axis) > 1:
            equal = broadcast(equal, mesh, axis, 0, "from_local")
    if torch.is_grad_enabled() and local.requires_grad:
        return _Received.apply(local, equal)  # pyright: ignore
    return equal


class _Received(torch.autograd.Function):
    """A tensor -> the data that was received for it; the gradient is the tensor's."""

    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, data: torch.Tensor) -> torch.Tensor:  # pyright: ignore
        return data.view_as(data)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # pyright: ignore
        return grad, None


def _said_by_all(text: str, mesh: DeviceMesh, operator: str) -> list[str]:
    """What every rank of the mesh says, in order of rank; texts are cut at 256 bytes."""
    said = torch.zeros(256, dtype=torch.uint8)
    encoded = text.encode()[:256]
    said[: len(encoded)] = torch.tensor(list(encoded), dtype=torch.uint8)
    gathered = said.to(mesh.device_type)
    for axis in reversed(range(mesh.ndim)):
        if mesh.size(axis) > 1:
            line = channel(mesh, (axis,))
            ranks = mesh.size(axis)
            with observe.announced(announcement(operator, "all_gather", mesh, axis, gathered)):
                arrived = collectives.wait(collectives.all_gather(gathered, ranks, line.name))
            numbers = sorted(range(ranks), key=line.coords.__getitem__)
            gathered = arrived.view(ranks, -1)[numbers].flatten()
    rows = gathered.view(-1, 256).tolist()
    return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in rows]
