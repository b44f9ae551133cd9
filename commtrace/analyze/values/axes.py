"""Sizes of the mesh axes and groups of a run, to which factors are compared."""

from __future__ import annotations

from commtrace.analyze.run.frame import Frames
from commtrace.analyze.values.global_values import parts


def sizes_of_axes(run: Frames) -> dict[str, int]:
    """Return the sizes of a run's mesh axes and groups that have more than one rank."""
    groups = run.groups
    axes = {
        str(axis) or str(name): int(size)
        for name, axis, size in zip(
            groups["name"], groups["mesh_axis"], groups["size"], strict=True
        )
        if size > 1
    }
    for mesh in parts(run)["mesh"].unique():
        for axis in str(mesh).partition(":")[0].split(","):
            name, _, size = axis.rpartition("=")
            is_named = bool(name) and not name.isdigit() and name not in ("data", "replicas")
            if is_named and size.isascii() and size.isdigit() and int(size[:9]) > 1:
                axes.setdefault(name, int(size))
    return axes
