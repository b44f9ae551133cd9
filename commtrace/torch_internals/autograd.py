"""torch's autograd: the backward pass in progress and its nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C._autograd import _get_sequence_nr as next_sequence_number
from torch.autograd import Variable

__all__ = ["next_sequence_number"]  # the number that the next node of this thread will have

_C: Any = torch._C

AccumulateGrad = _C._functions.AccumulateGrad
"""Class of the nodes that add to the `grad` of a leaf, their `variable`."""
current_graph_task_id = _C._current_graph_task_id
"""Return the number of the backward pass that runs on this thread; -1 if there is none."""
current_node = _C._current_autograd_node
"""Return the autograd node whose gradient is computed on this thread; None if there is none."""


def queue_callback(callback: Callable[[], None]) -> None:
    """Run a function at the end of the backward pass, after those queued before."""
    Variable._execution_engine.queue_callback(callback)  # pyright: ignore
