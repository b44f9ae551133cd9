"""Process groups of torch: c10d's options and records, functional collectives, meshes in force."""

from __future__ import annotations

from typing import Any

import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    FakeProcessGroup,
    FakeWork,
    GatherOptions,
    ProcessGroup,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)
from torch.distributed import distributed_c10d
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed._functional_collectives import _are_we_tracing as is_tracing
from torch.distributed.device_mesh import _mesh_resources

__all__ = [
    "AllToAllOptions",
    "AllgatherOptions",
    "AllreduceCoalescedOptions",
    "AllreduceOptions",
    "AsyncCollectiveTensor",
    "BarrierOptions",
    "BroadcastOptions",
    "FakeProcessGroup",
    "FakeWork",
    "GatherOptions",
    "ProcessGroup",
    "ReduceOptions",
    "ReduceScatterOptions",
    "ScatterOptions",
    "is_tracing",
]

_c10d: Any = torch._C._distributed_c10d  # pyright: ignore[reportAttributeAccessIssue]
_module: Any = distributed_c10d

functional_ops: Any = torch.ops._c10d_functional
"""Namespace of collectives that are operators: tensors and names of groups in, tensors out."""
default_store = _module._get_default_store
"""Return the store of the default group."""
resolve_group = _c10d._resolve_process_group
"""Return the process group of a name."""
isolate_threads = _c10d._set_thread_isolation_mode
"""Set whether each thread has groups of its own by name."""
meshes_in_force: Any = _mesh_resources
"""The meshes entered by `with mesh:`, innermost last in `mesh_stack`."""
World: Any = _module._World
"""Class of c10d's record of the process's groups."""


def world() -> Any:
    """Return c10d's record of the process's groups."""
    return _module._world


def set_world(record: Any) -> None:
    """Replace c10d's record."""
    _module._world = record
