"""Calls that have been issued and may not be complete, by the handle or result to wait for.

    issued ── returned ┬─ work ──── awaited in Python, by a reducer, or in a C++ function
                       ├─ result ── awaited by `wait_tensor`
                       └─ nothing to wait for: complete

On the CPU the backend reports completion to a callback, and a wait settles the call. On an
accelerator a wait only makes a stream wait, and device events report completion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import sleep
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from commtrace.recorder.clock import now
from commtrace.recorder.events.call import Call
from commtrace.recorder.events.data_times import DataTimes
from commtrace.recorder.events.request import tensors_of
from commtrace.recorder.events.signature import RESULT
from commtrace.recorder.failures import Failures
from commtrace.recorder.interception.device_events import Devices
from commtrace.recorder.interception.reducers import Reducers
from commtrace.recorder.thread_state import CURRENT, ThreadState
from commtrace.torch_internals.groups import FakeWork
from commtrace.torch_internals.tensors import FakeTensor
from commtrace.units import NANOSECONDS_PER_SECOND

_POLL_S = 0.001
_MAX_RESULTS = 4096
_MAX_WAITED = 256

WaitedAgain = Callable[[Call, int, int, int], None]
"""Receives a later wait for a call: the call, begin and duration in ns, and the thread."""


class Completion:
    """Callback for the completion of a call, owned by a backend thread until it has run.

    To release it, that thread needs the interpreter lock; it aborts the process if the interpreter
    has begun to shut down. `kept` therefore holds, by identity, the callbacks that must be waited
    for.
    """

    __slots__ = ("_call", "_work")
    kept: ClassVar[set[int]] = set()

    def __init__(self, call: Call, work: Any) -> None:
        self._call = call
        # Asked whether it is complete, also if the program drops it; the backend has it until then.
        self._work = work
        call.watch()
        self.kept.add(id(self))

    def __call__(self, _: Any) -> None:
        """Mark the call as complete."""
        self._call.completed(now())
        self._work = None

    def __del__(self) -> None:
        self._call.unwatch()
        self.kept.discard(id(self))


class PendingCalls:
    """Calls of this process that may not be complete."""

    def __init__(self, failures: Failures) -> None:
        self.devices = Devices()
        self.reducers = Reducers(self.blocked)
        self.before_first_result: Callable[[], None] | None = None
        self.waited_again: WaitedAgain | None = None
        self.data_times: DataTimes | None = None
        self._failures = failures
        self._works: dict[int, Call] = {}
        self._waited: dict[int, Call] = {}
        self._results: dict[int, Call] = {}

    def forget(self) -> None:
        """Drop all calls."""
        self.devices = Devices()
        self.reducers = Reducers(self.blocked)
        self._works.clear()
        self._waited.clear()
        self._results.clear()

    def returned(self, call: Call, result: Any, state: ThreadState) -> None:
        """Handle the return of an operator; `result` may contain a handle to wait for."""
        call.returned()
        try:
            request = call.request
            if request.signature.received == RESULT:
                if not request.received:  # else a call with the same request has returned
                    request.read_result(result)
                if self.data_times is not None:
                    self.data_times.returned(call, result)
            if request.group.is_fake:  # sends nothing: its times are unknown
                call.settle()
                return
            collectives = state.collectives
            if collectives.functional_calls is not None:
                collectives.functional_calls.append(call)
                return
            work = _work_in(result)
            if work is None and request.device != "cpu" and request.is_computed:
                # NCCL runs a synchronous call on the caller's stream, and returns no handle.
                self.devices.expect(call)
                return
            if work is None or isinstance(work, FakeWork):
                call.completed_on_return()
                return
            call.returned_work(work)
            self._works[id(work)] = call
            # The call refers to the handle weakly, and Python may not hold it yet.
            collectives.last_work = work
            if request.is_async:
                _watch(call, work)
                attribution = call.location.attribution
                if attribution is not None and attribution.is_reducers:
                    self.reducers.sent(call)
                elif collectives.awaited_in_cpp is not None:
                    call.expect_blocked_time()
                    collectives.awaited_in_cpp.append(call)
        except Exception as error:
            self._failures.append(error)

    def returned_functional(self, calls: Sequence[Call], result: Any) -> None:
        """Handle the return of a functional collective that issued `calls`: expect waits for it."""
        try:
            tensors = tensors_of(result)
            # A coalesced collective is one call with several results.
            if len(calls) != len(tensors):
                calls = [calls[0]] * len(tensors)
            for tensor, call in zip(tensors, calls, strict=True):
                self._expect_wait(call, tensor)
        except Exception as error:
            self._failures.append(error)

    def _expect_wait(self, call: Call, tensor: torch.Tensor) -> None:
        if not call.request.is_computed:
            call.completed_on_return()
            return
        results, key = self._results, _key_of(tensor)
        # The memory was given out again, so the former result will not be waited for.
        former = results.pop(key, None)
        if former is None and len(results) > _MAX_RESULTS:
            former = results.pop(next(iter(results)))
        if former is not None:
            former.settle()
        results[key] = call
        if self.before_first_result is not None:
            self.before_first_result()

    def call_of_result(self, tensor: torch.Tensor) -> Call | None:
        """Return the call whose result `tensor` is, unless it has been waited for."""
        # A fake tensor has no address to look up.
        if not self._results or isinstance(tensor, FakeTensor):
            return None
        try:
            return self._results.pop(_key_of(tensor), None)
        except RuntimeError:  # a sparse one, whose wait is an error of its own
            return None

    def call_of_work(self, work: Any) -> Call | None:
        """Return the call that a handle belongs to, unless it has been waited for."""
        call = self._works.get(id(work))
        # The identity may have been that of a handle that is gone.
        return call if call is not None and call.work() is work else None

    def waited_call(self, work: Any) -> Call | None:
        """Return the call of a handle that has been waited for, one of the latest."""
        call = self._waited.get(id(work))
        return call if call is not None and call.work() is work else None

    def waited_for_result(self, call: Call, begin: int) -> None:
        """Record a wait for a result that began at `begin` and has ended now."""
        self.blocked(call, begin, now())

    def waited_for_work(self, call: Call, begin: int, work: Any) -> None:
        """Record a wait for a handle that began at `begin` and has ended now."""
        self.blocked(call, begin, now())
        self._works.pop(id(work), None)
        if call.request.is_async:  # others are waited for by c10d
            waited = self._waited
            waited[id(work)] = call
            if len(waited) > _MAX_WAITED:
                del waited[next(iter(waited))]
        collectives = CURRENT.state.collectives
        if collectives.last_work is work:
            collectives.last_work = None

    def blocked(self, call: Call, begin: int, end: int) -> None:
        """Record a wait for a call from `begin` to `end`."""
        state = CURRENT.state
        state.collectives.num_waits += 1
        if not call.waited(begin, end, state.native_id):
            self.waited_later(call, begin, end)
        if call.num_waits == 1 and call.request.device != "cpu":
            try:
                self.devices.expect(call)
            except Exception as error:
                self._failures.append(error)

    def wait_raised(self, call: Call, begin: int) -> None:
        """Record a wait for a call that began at `begin` and has raised now."""
        end = now()
        if not call.wait_ended(begin, end, CURRENT.state.native_id):
            self.waited_later(call, begin, end)

    def waited_later(self, call: Call, begin: int, end: int) -> None:
        """Record a wait for a call that is not the first."""
        if self.waited_again is not None:
            self.waited_again(call, begin, end - begin, CURRENT.state.native_id)

    def query_devices(self) -> None:
        """Query which calls have completed on accelerators."""
        try:
            self.devices.query()
        except Exception as error:
            self._failures.append(error)

    def awaitable_calls(self) -> list[Call]:
        """Return the calls whose handles the program may wait for, including steps left out."""
        return list(self._works.values())

    def drop_dead_works(self) -> None:
        """Forget handles that the program has discarded."""
        for key, call in list(self._works.items()):
            if call.work() is None:
                del self._works[key]


def await_callbacks(timeout_s: float) -> None:
    """Wait up to `timeout_s` for backends to release completions that they have reported."""
    deadline = now() + round(timeout_s * NANOSECONDS_PER_SECOND)
    while Completion.kept:
        if now() > deadline:  # of calls still in progress
            Completion.kept.clear()
        else:
            sleep(_POLL_S)


def _watch(call: Call, work: Any) -> None:
    """Watch for the completion of a call that the program may never wait for in Python.

    Not on accelerators, where a future's callback would make its stream wait.
    """
    if call.request.device != "cpu":
        return

    try:
        future = work.get_future()
    except RuntimeError:  # the backend has none
        return
    future.add_done_callback(Completion(call, work))


def _key_of(result: torch.Tensor) -> int:
    """Return the address of a result, or of its storage, which even an empty result has."""
    return result.data_ptr() or result.untyped_storage()._cdata


def _work_in(result: Any) -> Any:
    """Return the handle in an operator's result: boxed, last in a tuple, or the result itself."""
    box = result[-1] if isinstance(result, (tuple, list)) and result else result
    if isinstance(box, torch.ScriptObject):
        return dist.Work.unbox(box)
    return box if isinstance(box, dist.Work) else None
