"""Mesh axis names of groups, taken from the meshes that a test creates as it creates them.

A mesh may adopt a group created elsewhere, such as the world's, which then does not carry its axis.
At the end of a test the mesh is gone. Inside `naming_axes`, the recorder is notified of each mesh
when it is created. Meshes of earlier tests are ignored, since it depends on chance whether they
still exist.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from commtrace.recorder import RECORDER
from commtrace.torch_internals.groups import resolve_group

_lock = threading.Lock()
_num_inside = 0
_init: Callable[..., None] = DeviceMesh.__init__


@contextmanager
def naming_axes() -> Iterator[None]:
    """Notify the recorder of each mesh created during the body, on any thread."""
    global _num_inside, _init
    with _lock:
        if not _num_inside:
            _init = DeviceMesh.__init__
            DeviceMesh.__init__ = _announcing_init  # pyright: ignore[reportAttributeAccessIssue]
        _num_inside += 1
    try:
        yield
    finally:
        with _lock:
            _num_inside -= 1
            if not _num_inside:
                DeviceMesh.__init__ = _init  # pyright: ignore[reportAttributeAccessIssue]


def _announcing_init(mesh: Any, *args: Any, **options: Any) -> None:
    _init(mesh, *args, **options)
    announce(mesh)


def announce(mesh: DeviceMesh) -> None:
    """Notify the recorder of the groups of a mesh, and of their axes."""
    names = getattr(mesh, "_dim_group_names", ())
    axes = getattr(mesh, "mesh_dim_names", None) or [f"axis{n}" for n in range(len(names))]
    # The facts of a run follow the newest group, which an announced one must not become.
    newest = RECORDER.groups.newest
    for name, axis in zip(names, axes, strict=False):
        try:
            group = resolve_group(name)
        except (RuntimeError, KeyError, ValueError):  # this rank is not part of it
            continue
        RECORDER.groups.of(group).learn_axis(axis)
    RECORDER.groups.newest = newest or RECORDER.groups.newest
