"""Rotation: each rank of a one-axis mesh receives the local tensor of another rank.

An all-to-all in which each rank sends to a single other rank. Called by ring attention.
"""

from __future__ import annotations

import torch

from dtensor_core import collectives, observe
from dtensor_core.mesh import DeviceMesh, axis_name, channel


def rotated(local: torch.Tensor, mesh: DeviceMesh, steps: int, operator: str) -> torch.Tensor:
    """Return the flat local tensor of the rank `steps` places before, cyclically.

    Sizes must be equal on all ranks.
    """
    line = channel(mesh, (0,))
    ranks, coord = mesh.size(), mesh.get_local_rank()
    target, source = (coord + steps) % ranks, (coord - steps) % ranks
    sent, received = (
        [local.numel() * (place == (each,)) for place in line.coords] for each in (target, source)
    )
    reason = observe.Reason(
        operator=operator,
        argument="key, value",
        source=f"of coordinate {coord}",
        target=f"of coordinate {source}",
        step="all_to_all",
        axis=axis_name(mesh, 0),
        payload_bytes=local.numel() * local.element_size(),
    )
    with observe.announced(reason):
        return collectives.wait(collectives.all_to_all(local, received, sent, line.name))
