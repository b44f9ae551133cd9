"""Blocked time of DDP buckets, for which DistributedDataParallel's reducer waits in C++, unseen.

A reducer waits in a callback that the autograd engine runs at the end of a backward pass. The
engine runs callbacks in the order of their registration. The first bucket of a pass registers one
of ours, which runs before the reducer's and registers another, which runs after it:

    engine    ... last node | ours: begin | the reducer's: bucket 0, 1, ... | ours: end

A bucket blocks from the end of the previous one to its own completion. Buckets sent in a callback,
as are all buckets of a static graph's first pass, are waited for there.

Other C++ functions wait for everything they send before they return: those in `WAITING`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Variable

from commtrace.recorder.calls import Call
from commtrace.recorder.clock import now
from commtrace.recorder.thread_state import HERE

_UNKNOWN = -1

WAITING: tuple[tuple[Any, str], ...] = (
    (dist, "_broadcast_coalesced"),
    (dist, "_verify_params_across_processes"),
    (getattr(dist, "Reducer", None), "_rebuild_buckets"),
)
"""C++ functions that wait for everything they send: parameters, buffers and their sizes, when a
model is wrapped and before its forward passes.
"""


class Reducers:
    """Backward passes in progress, one per thread.

    `waited` is called for each wait with the call and the wait's begin and end in ns.
    """

    def __init__(self, waited: Callable[[Call, int, int], None]) -> None:
        self._waited = waited
        self._passes: dict[int, _Pass] = {}

    def sent(self, call: Call) -> None:
        """Note a bucket sent in this thread's backward pass; the reducer will wait for it."""
        task = torch._C._current_graph_task_id()
        current = self._passes.get(call.thread)
        if current is None or current.task != task:
            if current is not None:  # it may have raised
                current.give_up()
            current = self._passes[call.thread] = _Pass(task, self._waited)
            node: Any = torch._C._current_autograd_node()
            _hand_in(current.end if node is None else current.begin)
        call.is_owed = True
        current.calls.append(call)


class _Pass:
    """Buckets of one backward pass."""

    def __init__(self, task: int, waited: Callable[[Call, int, int], None]) -> None:
        self.task = task
        self.calls: list[Call] = []
        self._waited = waited
        self._begun = _UNKNOWN

    def begin(self) -> None:
        """Note that the engine has run all nodes."""
        self._begun = now()
        _hand_in(self.end)

    def end(self) -> None:
        """Settle the buckets, all of which the reducer has waited for."""
        settle(self.calls, self._waited, self._begun)
        self.calls = []

    def give_up(self) -> None:
        """Release the calls; their blocked time stays unknown."""
        for call in self.calls:
            call.is_owed = False
        self.calls = []


def waiting(function: Callable[..., Any], recorder: Any) -> Callable[..., Any]:
    """Wrap a C++ function that waits for everything it sends, so that these waits are recorded."""

    def seen(*args: Any, **kwargs: Any) -> Any:
        if not recorder.buffers:
            return function(*args, **kwargs)
        state = HERE.state
        outer, state.unseen = state.unseen, []
        try:
            return function(*args, **kwargs)
        finally:
            calls, state.unseen = state.unseen, outer
            settle(calls, recorder.blocked)

    return seen


def settle(
    calls: Sequence[Call], waited: Callable[[Call, int, int], None], begun: int = -1
) -> None:
    """Record that the calls were waited for one after the other, not before `begun`."""
    ended, through = now(), begun
    for call in calls:
        begin = max(through, call.returned)
        through = ended if call.end < 0 else max(begin, min(call.end, ended))
        waited(call, begin, through)
        call.is_owed = False


def _hand_in(callback: Callable[[], None]) -> None:
    Variable._execution_engine.queue_callback(callback)  # pyright: ignore
