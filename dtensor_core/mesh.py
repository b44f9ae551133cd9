"""Device meshes: torch's own, re-exported, and what this package asks of them.

A mesh axis is named by `mesh_dim_names`, or `axis0`, `axis1`, ... where it has no name. A rank
that is not part of a mesh has no coordinate on it.

Meshes compare equal by shape and ranks, so a mesh of destroyed process groups equals the one that
was made in its place. What caches by mesh uses `identity`, which tells them apart.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from torch.distributed.device_mesh import DeviceMesh, _mesh_resources, init_device_mesh

from dtensor_core.errors import MeshError, four_parts

__all__ = ["DeviceMesh", "axis_name", "current_mesh", "identity", "init_device_mesh", "mesh_shape"]


def current_mesh(mesh: DeviceMesh | None = None) -> DeviceMesh:
    """The mesh given, or the one of the innermost `with mesh:`.

    Raises MeshError if there is neither.
    """
    if mesh is not None:
        return mesh
    if not _mesh_resources.mesh_stack:
        raise MeshError(
            four_parts(
                asked="a device mesh",
                found="none was given, and no `with mesh:` is in force",
                hint="pass device_mesh=init_device_mesh(...)",
            )
        )
    return _mesh_resources.get_current_mesh()


def axis_name(mesh: DeviceMesh, axis: int) -> str:
    """The name of a mesh axis."""
    names = mesh.mesh_dim_names
    return names[axis] if names else f"axis{axis}"


def mesh_shape(mesh: DeviceMesh) -> tuple[int, ...]:
    """The number of ranks on each axis."""
    return tuple(mesh.shape)


@dataclass(frozen=True, eq=False)
class Identity:
    """What equal meshes with the same process groups, seen from one rank, have in common."""

    mesh: DeviceMesh


# Both forget a mesh once no spec is left on it.
_identities: weakref.WeakValueDictionary[tuple[Any, ...], Identity] = weakref.WeakValueDictionary()
_by_object: dict[int, tuple[weakref.ref[DeviceMesh], weakref.ref[Identity]]] = {}


def identity(mesh: DeviceMesh) -> Identity:
    """The one identity of a mesh; the same object for all meshes that are interchangeable."""
    known = _by_object.get(id(mesh))
    if known is not None and known[0]() is mesh:
        found = known[1]()
        if found is not None:
            return found
    coords = mesh.get_coordinate()
    if coords is None or not hasattr(mesh, "_dim_group_names"):
        groups = ()
    else:
        groups = tuple(id(group) for group in mesh.get_all_groups())
    key = (mesh, groups, None if coords is None else tuple(coords))
    found = _identities.setdefault(key, Identity(mesh))
    number = id(mesh)
    gone = weakref.ref(mesh, lambda _: _by_object.pop(number, None))
    _by_object[number] = (gone, weakref.ref(found))
    return found
