"""How long reducers wait for their buckets: those of DistributedDataParallel do so in C++, unseen.

A reducer waits in a callback that the autograd engine runs at the end of a backward pass, and the
engine runs callbacks in the order in which they were handed in. The first bucket of a pass hands in
one of ours, which comes before the reducer's and hands in another, which comes behind it:

    engine    ... last node | ours: begin | the reducer's: bucket 0, 1, ... | ours: end

A bucket blocks from the end of the one before it to its own completion. What is sent in a callback,
as all buckets of a static graph's first pass, is waited for there.

Other functions of C++ wait for all that they send before they return: those in `WAITING`.
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
"""Functions of C++ that wait for all that they send: parameters, buffers and their sizes, when a
model is wrapped, and before its forward passes."""


class Reducers:
    """The backward passes at work, one a thread. `waited` is told of waits: call, begin, end."""

    def __init__(self, waited: Callable[[Call, int, int], None]) -> None:
        self._waited = waited
        self._passes: dict[int, _Pass] = {}

    def sent(self, call: Call) -> None:
        """A reducer has sent a bucket in the backward pass of this thread, and will wait for it."""
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
    """The buckets of one backward pass."""

    def __init__(self, task: int, waited: Callable[[Call, int, int], None]) -> None:
        self.task = task
        self.calls: list[Call] = []
        self._waited = waited
        self._begun = _UNKNOWN

    def begin(self) -> None:
        """The engine has run all nodes."""
        self._begun = now()
        _hand_in(self.end)

    def end(self) -> None:
        """The reducer has waited for all of its buckets."""
        settle(self.calls, self._waited, self._begun)
        self.calls = []

    def give_up(self) -> None:
        """Nothing more will become known of the calls."""
        for call in self.calls:
            call.is_owed = False
        self.calls = []


def waiting(function: Callable[..., Any], recorder: Any) -> Callable[..., Any]:
    """A function of C++ that waits for all that it sends, and is known to."""

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
    """The calls have been waited for, one after the other, and not before `begun`."""
    ended, through = now(), begun
    for call in calls:
        begin = max(through, call.returned)
        through = ended if call.end < 0 else max(begin, min(call.end, ended))
        waited(call, begin, through)
        call.is_owed = False


def _hand_in(callback: Callable[[], None]) -> None:
    Variable._execution_engine.queue_callback(callback)  # pyright: ignore
