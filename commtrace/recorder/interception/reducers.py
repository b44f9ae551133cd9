"""Blocked time of DDP buckets, for which DistributedDataParallel's reducer waits in C++, unseen.

A reducer waits in a callback that the autograd engine runs at the end of a backward pass. The
engine runs callbacks in the order of their registration. The first bucket of a pass registers our
callback, which runs before the reducer's and registers another, which runs after it:

    engine    ... last node | ours: begin | the reducer's: bucket 0, 1, ... | ours: end

A bucket blocks from the end of the previous bucket to its own completion. Buckets sent in a
callback, as are all buckets of a static graph's first pass, are waited for there.

The C++ functions in `FUNCTIONS_THAT_WAIT` wait for everything they send before they return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from commtrace.recorder.clock import now
from commtrace.recorder.events.call import Call
from commtrace.recorder.thread_state import CURRENT
from commtrace.torch_internals.autograd import current_graph_task_id, current_node, queue_callback

_UNKNOWN = -1

Blocked = Callable[[Call, int, int], None]
"""Callback that receives a call and the begin and end of a wait for it, in ns."""

FUNCTIONS_THAT_WAIT: tuple[tuple[Any, str], ...] = (
    (dist, "_broadcast_coalesced"),
    (dist, "_verify_params_across_processes"),
    (getattr(dist, "Reducer", None), "_rebuild_buckets"),
)
"""C++ functions that wait for everything they send: parameters, buffers and their sizes, when a
model is wrapped and before its forward passes.
"""


class Reducers:
    """Backward passes in progress, one per thread.

    `blocked` is called for each wait with the call and the wait's begin and end in ns.
    """

    def __init__(self, blocked: Blocked) -> None:
        self._blocked = blocked
        self._passes: dict[int, _Pass] = {}

    def sent(self, call: Call) -> None:
        """Note a bucket sent in this thread's backward pass; the reducer will wait for it."""
        task = current_graph_task_id()
        current = self._passes.get(call.thread)
        if current is None or current.task != task:
            if current is not None:  # it may have raised
                current.give_up()
            current = self._passes[call.thread] = _Pass(task, self._blocked)
            node: Any = current_node()
            # Without a node, the reducer's callback is running: only the one after it is missing.
            queue_callback(current.end if node is None else current.begin)
        call.expect_blocked_time()
        current.calls.append(call)


class _Pass:
    """Buckets of a backward pass."""

    def __init__(self, task: int, blocked: Blocked) -> None:
        self.task = task
        self.calls: list[Call] = []
        self._blocked = blocked
        self._begun = _UNKNOWN

    def begin(self) -> None:
        """Note that the engine has run all nodes."""
        self._begun = now()
        queue_callback(self.end)

    def end(self) -> None:
        """Settle the buckets, now that the reducer has waited for all of them."""
        settle(self.calls, self._blocked, self._begun)
        self.calls = []

    def give_up(self) -> None:
        """Release the calls; their blocked time stays unknown."""
        for call in self.calls:
            call.blocked_time_reported()
        self.calls = []


def recording_waits(function: Callable[..., Any], blocked: Blocked) -> Callable[..., Any]:
    """Wrap a C++ function that waits for everything it sends, so that these waits are recorded."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        collectives = CURRENT.state.collectives
        outer, collectives.awaited_in_cpp = collectives.awaited_in_cpp, []
        try:
            return function(*args, **kwargs)
        finally:
            calls, collectives.awaited_in_cpp = collectives.awaited_in_cpp, outer
            settle(calls, blocked)

    return wrapper


def settle(calls: Sequence[Call], blocked: Blocked, begun: int = _UNKNOWN) -> None:
    """Record that the calls were waited for in turn, not before `begun`."""
    ended, through = now(), begun
    for call in calls:
        begin = max(through, call.return_ns)
        # A bucket that was complete before its turn blocks for no time.
        through = ended if call.complete_ns < 0 else max(begin, min(call.complete_ns, ended))
        blocked(call, begin, through)
        call.blocked_time_reported()
