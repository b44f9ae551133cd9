"""Device meshes, under the module name that programs import them from."""

from dtensor_core.mesh import DeviceMesh, init_device_mesh

__all__ = ["DeviceMesh", "init_device_mesh"]
