"""torch's autograd: the backward pass in progress, versions of tensors, levels of dual numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

_C: Any = torch._C

current_graph_task_id = _C._current_graph_task_id
"""Return the number of the backward pass that runs on this thread; -1 outside of one."""
current_node = _C._current_autograd_node
"""Return the autograd node whose gradient is computed on this thread; None if there is none."""
increment_version = _C._increment_version
"""Note a write to each tensor of a tuple, so that autograd refuses to use its saved value."""


def has_dual_level() -> bool:
    """Return whether a level of forward-mode differentiation is entered."""
    return forward_ad._current_level >= 0
