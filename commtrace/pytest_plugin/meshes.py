"""Meshes that a test makes name the groups of their axes at once.

A mesh may take over a group that others have made, the world's for instance, which then does not
tell its axis; and at the end of a test the mesh is gone. While `naming_axes` is entered, the
recorder is told of each mesh when it is made. Meshes of earlier tests tell nothing: whether they
are still there depends on chance.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch._C._distributed_c10d import _resolve_process_group
from torch.distributed.device_mesh import DeviceMesh

from commtrace.recorder import RECORDER

_lock = threading.Lock()
_num_inside = 0
_init: Callable[..., None] = DeviceMesh.__init__


@contextmanager
def naming_axes() -> Iterator[None]:
    """Tell the recorder of each mesh that is made during the body, on any thread."""
    global _num_inside, _init
    with _lock:
        if not _num_inside:
            _init = DeviceMesh.__init__
            DeviceMesh.__init__ = _telling_init  # pyright: ignore[reportAttributeAccessIssue]
        _num_inside += 1
    try:
        yield
    finally:
        with _lock:
            _num_inside -= 1
            if not _num_inside:
                DeviceMesh.__init__ = _init  # pyright: ignore[reportAttributeAccessIssue]


def _telling_init(mesh: Any, *args: Any, **options: Any) -> None:
    _init(mesh, *args, **options)
    tell(mesh)


def tell(mesh: DeviceMesh) -> None:
    """Tell the recorder which groups a mesh has, and of which axes."""
    names = getattr(mesh, "_dim_group_names", ())
    axes = getattr(mesh, "mesh_dim_names", None) or [f"axis{n}" for n in range(len(names))]
    newest = RECORDER.groups.newest
    for name, axis in zip(names, axes, strict=False):
        try:
            group = _resolve_process_group(name)
        except (RuntimeError, KeyError, ValueError):  # this rank is no part of it
            continue
        RECORDER.groups.of(group).learn_axis(axis)
    RECORDER.groups.newest = newest or RECORDER.groups.newest
