"""c10d: its operators, groups by name, and groups and handles that send nothing."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed._functional_collectives  # its import defines the operators
from torch._C._distributed_c10d import FakeProcessGroup, FakeWork, _resolve_process_group

__all__ = ["FakeWork", "make_fake_backend", "resolve_group"]

former_functional_ops: Any = torch.ops.c10d_functional
"""Namespace of collectives that are operators, under their former names."""
resolve_group: Any = _resolve_process_group
"""Return the process group of a name."""
make_fake_backend = FakeProcessGroup._create_internal
"""Make a backend that sends nothing, from a rank and a number of ranks."""
