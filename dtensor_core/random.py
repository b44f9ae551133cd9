"""Random numbers over a mesh: seeding, and separate numbers for plain tensors on each rank.

Random operators on DTensors don't need this module. They draw from torch's own generators, and
match a single device as long as the generators of all ranks of the mesh are in the same state
(`sharded_rng`, docs/random.md). That state is torch's: `torch.manual_seed`, `get_rng_state`,
`fork_rng` and activation checkpointing work as on a single device. Nothing here communicates,
except `check_seeds`. Called by users.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from dtensor_core.errors import MeshError, RandomStateError
from dtensor_core.mesh import DeviceMesh, axis_name
from dtensor_core.placement import Shard
from dtensor_core.sharded_rng import apart
from dtensor_core.tensor import DTensor

__all__ = ["check_seeds", "is_rng_supported_mesh", "manual_seed", "per_rank"]


def is_rng_supported_mesh(device_mesh: DeviceMesh) -> bool:
    """True if random operators on DTensors of this mesh can draw a single device's numbers.

    That holds for the CPU, and for any device whose generator state can be read.
    """
    kind = device_mesh.device_type
    return kind == "cpu" or hasattr(torch.get_device_module(kind), "get_rng_state")


def manual_seed(seed: int, device_mesh: DeviceMesh) -> None:
    """Set the seed of this rank's generators, as `torch.manual_seed` does.

    All ranks of the mesh must pass the same seed.

    Args:
        seed: The seed.
        device_mesh: The mesh whose ranks call this.

    Raises:
        RandomStateError: This rank is not part of the mesh (a RuntimeError).
    """
    if device_mesh.get_coordinate() is None:
        raise RandomStateError(
            "manual_seed for the DTensors of a mesh",
            found=f"manual_seed requires the current rank to be a part of the device mesh, "
            f"{device_mesh}",
            why="a rank outside of it draws no numbers for them",
            hint="torch.manual_seed(seed), which any rank may call",
        )
    torch.manual_seed(seed)


@contextmanager
def per_rank(device_mesh: DeviceMesh, axes: Sequence[str | int] | None = None) -> Iterator[None]:
    """Draw plain tensors differently on ranks with different coordinates on `axes`.

    For tensors that are a rank's part of a larger tensor, such as local activations in
    `nn.Dropout`. Ranks with the same coordinates on `axes` (default: all axes) draw the same
    numbers. All ranks must enter together. The numbers follow from the random state on entry, which
    advances by one number of the CPU's generator and is equal on all ranks again afterwards. Random
    operators on DTensors must not be used inside.

    Raises:
        MeshError: The mesh does not have all of the axes.
    """
    place = 0
    coords = device_mesh.get_coordinate()
    for axis in _axes(device_mesh, axes):
        place = place * device_mesh.size(axis) + (coords[axis] if coords is not None else 0)
    with apart(device_mesh.device_type, place):
        yield


def check_seeds(device_mesh: DeviceMesh) -> None:
    """Compare the generators of all ranks of a mesh, by an all-gather of one number per axis.

    Raises:
        RandomStateError: The states differ; raised on all of these ranks.
    """
    if device_mesh.get_coordinate() is None:
        return
    kind = device_mesh.device_type
    module = torch if kind == "cpu" else torch.get_device_module(kind)
    digest = hashlib.sha256(module.get_rng_state().cpu().numpy().tobytes()).digest()
    # Seven bytes, since eight may exceed an int64, which has a sign.
    local = torch.tensor([int.from_bytes(digest[:7], "big")], device=kind)
    found = DTensor.from_local(local, device_mesh, [Shard(0)] * device_mesh.ndim).full_tensor()
    ranks = device_mesh.mesh.flatten().tolist()
    differing = [rank for rank, each in zip(ranks, found.tolist(), strict=True) if each != found[0]]
    if differing:
        raise RandomStateError(
            f"random numbers over {device_mesh}",
            found=f"the {kind} generators of ranks {differing} are not in the state of rank "
            f"{ranks[0]}",
            why="replicas would hold different numbers, and shards would not belong to the same "
            "tensor",
            hint="torch.manual_seed(seed) with the same seed on all ranks of the mesh, and "
            "the same random calls on each; per_rank(mesh) is for plain tensors that differ",
        )


def _axes(mesh: DeviceMesh, axes: Sequence[str | int] | None) -> list[int]:
    """Return the numbers of mesh axes, in order."""
    if axes is None:
        return list(range(mesh.ndim))
    known = {axis_name(mesh, axis): axis for axis in range(mesh.ndim)}
    known_numbers = set(known.values())
    unknown = [a for a in axes if a not in known and a not in known_numbers]
    if unknown or isinstance(axes, str):
        raise MeshError(
            f"random numbers per rank along axes {axes!r}",
            found=f"a mesh with axes {list(known)}",
            hint="pass a list of names or numbers of its axes",
        )
    return sorted({known[axis] if isinstance(axis, str) else axis for axis in axes})
