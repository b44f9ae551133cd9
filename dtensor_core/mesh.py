"""Device meshes: torch's own, re-exported, and what this package asks of them.

A mesh axis is named by `mesh_dim_names`, or `axis0`, `axis1`, ... where it has no name. A rank
that is not part of a mesh has no coordinate on it.
"""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh, _mesh_resources, init_device_mesh

from dtensor_core.errors import MeshError, four_parts

__all__ = ["DeviceMesh", "axis_name", "current_mesh", "init_device_mesh", "mesh_shape"]


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
