"""Device meshes: torch's own, re-exported, with the queries that this package needs.

A mesh axis is named by `mesh_dim_names`, or `axis0`, `axis1`, ... if it has no name. A rank that is
not part of a mesh has no coordinate on it.

Meshes compare equal by shape and ranks, so a mesh of destroyed process groups equals its
replacement. Caches by mesh use `identity`, which distinguishes them.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dtensor_core.errors import MeshError
from dtensor_core.torch_internals.dispatcher import no_dispatch_modes
from dtensor_core.torch_internals.groups import meshes_in_force

__all__ = [
    "Channel",
    "DeviceMesh",
    "axes_name",
    "axis_name",
    "axis_number",
    "channel",
    "current_mesh",
    "flattened",
    "forget_decisions",
    "identity",
    "init_device_mesh",
    "mesh_shape",
    "num_flattened",
    "on_change",
]


def current_mesh(mesh: DeviceMesh | None = None) -> DeviceMesh:
    """Return the given mesh, or the mesh of the innermost `with mesh:`.

    Raises:
        MeshError: There is neither.
    """
    if mesh is not None:
        return mesh
    if not meshes_in_force.mesh_stack:
        raise MeshError(
            "a device mesh",
            found="no mesh was passed, and no `with mesh:` is active",
            hint="pass device_mesh=init_device_mesh(...)",
        )
    return meshes_in_force.get_current_mesh()


def axis_name(mesh: DeviceMesh, axis: int) -> str:
    """Return the name of a mesh axis."""
    names = mesh.mesh_dim_names
    return names[axis] if names else f"axis{axis}"


def axes_name(mesh: DeviceMesh, axes: Sequence[int]) -> str:
    """Return the name of an axis, or of several joined axes: `dp+tp`."""
    return "+".join(axis_name(mesh, axis) for axis in axes)


def mesh_shape(mesh: DeviceMesh) -> tuple[int, ...]:
    """Return the number of ranks on each axis."""
    return tuple(mesh.shape)


def axis_number(mesh: DeviceMesh, axis: int | str) -> int:
    """Return the number of a mesh axis given by name or by number, which may be negative.

    Raises:
        MeshError: The mesh does not have this axis.
    """
    names = [axis_name(mesh, number) for number in range(mesh.ndim)]
    if isinstance(axis, str) and axis in names:
        return names.index(axis)
    if isinstance(axis, int) and -mesh.ndim <= axis < mesh.ndim:
        return axis % mesh.ndim
    raise MeshError(
        f"axis {axis!r} of {mesh}",
        found=f"axes {', '.join(names)}",
        hint="pass the name or the number of an axis",
    )


@dataclass(frozen=True, slots=True)
class Channel:
    """A process group of the ranks along some axes, with the coordinates of its ranks.

    `coords` are the coordinates on those axes, in the order of ranks in the group. torch numbers
    the ranks of a group by their global rank, independent of the order of the mesh.
    """

    group: dist.ProcessGroup
    name: str
    coords: tuple[tuple[int, ...], ...]


def channel(mesh: DeviceMesh, axes: tuple[int, ...]) -> Channel:
    """Return the channel along an axis, or along several flattened axes.

    Raises:
        MeshError: This rank is outside of the mesh, or no group joins the axes.
    """
    channels = identity(mesh).channels
    if axes not in channels:
        channels[axes] = _channel(mesh, axes)
    return channels[axes]


def _channel(mesh: DeviceMesh, axes: tuple[int, ...]) -> Channel:
    coords = mesh.get_coordinate()
    if coords is None:
        raise MeshError(f"this rank is not part of {mesh}")
    joined = mesh if len(axes) == 1 else flattened(mesh).get(axes)
    if joined is None:
        raise MeshError(f"no process group joins the axes {axes} of {mesh}")
    group = joined.get_group(axes[0] if joined is mesh else 0)
    place = tuple(slice(None) if a in axes else coord for a, coord in enumerate(coords))
    with no_dispatch_modes():  # the ranks must be readable even if tensors are fake
        line = mesh.mesh[place].flatten().tolist()
    places = itertools.product(*(range(mesh.size(axis)) for axis in axes))
    at = dict(zip(line, places, strict=True))
    ranks = dist.get_process_group_ranks(group)
    return Channel(group, group.group_name, tuple(at[rank] for rank in ranks))


def num_flattened(mesh: DeviceMesh) -> int:
    """Return how often `_flatten` has joined axes of this mesh, or of its root mesh."""
    return len((mesh._root_mesh or mesh)._flatten_mapping)


def flattened(mesh: DeviceMesh) -> dict[tuple[int, ...], DeviceMesh]:
    """Return the 1D meshes that `_flatten` made from several axes, by the axes' numbers.

    Axes of size 1 are left out. No group is made here, since that takes all ranks of the world,
    which may not all be here; they are when the program calls `mesh["dp", "tp"]._flatten()`.
    """
    made = (mesh._root_mesh or mesh)._flatten_mapping
    live = [axis for axis in range(mesh.ndim) if mesh.size(axis) > 1]
    if not made or len(live) < 2:
        return {}
    by_offsets = {tuple(sorted(_offsets([each._layout[0]]))): each for each in made.values()}
    found: dict[tuple[int, ...], DeviceMesh] = {}
    for count in range(2, len(live) + 1):
        for axes in itertools.combinations(live, count):
            offsets = tuple(sorted(_offsets([mesh._layout[axis] for axis in axes])))
            if offsets in by_offsets:
                found[axes] = by_offsets[offsets]
    return found


def _offsets(layouts: Sequence[Any]) -> list[int]:
    """Return the positions of the ranks along some axes, relative to the first."""
    offsets = [0]
    for layout in layouts:
        for size, stride in layout.sizes_and_strides:
            offsets = [offset + place * stride for offset in offsets for place in range(size)]
    return offsets


_forgetful: list[Callable[[], object]] = []


def on_change(forget: Callable[[], object]) -> None:
    """Register `forget`, called when inputs of plans change: costs, or flattened axes."""
    _forgetful.append(forget)


def forget_decisions() -> None:
    """Discard all decisions, after costs or groups of a mesh have changed."""
    for forget in _forgetful:
        forget()


@dataclass(frozen=True, eq=False)
class Identity:
    """Identity shared by equal meshes with the same process groups, as seen from a rank.

    Also caches the mesh's shape, this rank's coordinates (None outside of the mesh) and the
    channels by their axes, which the mesh recomputes on every access.
    """

    mesh: DeviceMesh
    shape: tuple[int, ...]
    coords: tuple[int, ...] | None
    channels: dict[tuple[int, ...], Channel] = field(default_factory=dict)


# In both, the entry of a mesh is dropped once no spec on it is left.
_identities: weakref.WeakValueDictionary[tuple[Any, ...], Identity] = weakref.WeakValueDictionary()
_by_object: dict[int, tuple[weakref.ref[DeviceMesh], weakref.ref[Identity]]] = {}


def identity(mesh: DeviceMesh) -> Identity:
    """Return the identity of a mesh; the same object for all interchangeable meshes."""
    known = _by_object.get(id(mesh))
    # The id of a mesh that is gone may be that of another one now.
    if known is not None and known[0]() is mesh:
        found = known[1]()
        if found is not None:
            return found
    coords = mesh.get_coordinate()
    if coords is None or not hasattr(mesh, "_dim_group_names"):
        groups = ()
    else:
        groups = tuple(id(group) for group in mesh.get_all_groups())
    here = None if coords is None else tuple(coords)
    key = (mesh, groups, here)
    found = _identities.setdefault(key, Identity(mesh, mesh_shape(mesh), here))
    number = id(mesh)
    # The callback refers to the number alone, since a reference to the mesh would keep it alive.
    gone = weakref.ref(mesh, lambda _: _by_object.pop(number, None))
    _by_object[number] = (gone, weakref.ref(found))
    return found
