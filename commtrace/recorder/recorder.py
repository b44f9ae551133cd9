"""Recorder of this process, notified when calls are issued, return and are waited for.

`RECORDER` is the only instance. `intercept` reports to it, and each call goes to the buffers of all
listening recordings. Errors inside the recorder are kept in `failures` and reported when the
recording ends; they never reach the recorded program.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from time import sleep
from types import FrameType
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeWork
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensor

from commtrace.recorder.bridge import announcement
from commtrace.recorder.buffer import Sink, Span
from commtrace.recorder.calls import (
    Call,
    Numbering,
    Request,
    read_arguments,
    read_result,
    tensors_of,
)
from commtrace.recorder.clock import now
from commtrace.recorder.device_events import Devices
from commtrace.recorder.failures import Failures
from commtrace.recorder.groups import Group, Groups, resolve
from commtrace.recorder.locator import Locator
from commtrace.recorder.reducers import Reducers
from commtrace.recorder.signatures import RESULT, Signature
from commtrace.recorder.stack_frames import is_library, whole_stack
from commtrace.recorder.steps import OPTIMIZER
from commtrace.recorder.tensor_identity import TensorIdentity, identify
from commtrace.recorder.thread_state import HERE, ThreadState, forget_marks
from commtrace.units import NANOSECONDS_PER_SECOND

_POLL_S = 0.001
_MAX_RESULTS = 4096
_MAX_ANNOUNCED = 4096
_BLOCKING_TRANSFERS = frozenset({"send", "recv"})


class Completion:
    """Callback for the completion of a call, owned by a backend thread until it has run.

    To release it, that thread needs the interpreter lock; it aborts the process if the interpreter
    has begun to shut down. `kept` therefore holds, by identity, the callbacks that must be waited
    for.
    """

    __slots__ = ("_call",)
    kept: ClassVar[set[int]] = set()

    def __init__(self, call: Call) -> None:
        self._call = call
        call.is_watched = True
        self.kept.add(id(self))

    def __call__(self, _: Any) -> None:
        """Mark the call as complete."""
        if self._call.end < 0:
            self._call.end = now()

    def __del__(self) -> None:
        self._call.is_watched = False
        self.kept.discard(id(self))


class Recorder:
    """Turns intercepted operators into calls and hands them to the buffers."""

    def __init__(self) -> None:
        self.buffers: tuple[Sink, ...] = ()
        self.span_keepers: tuple[Callable[[Span], None], ...] = ()
        self.wants_layouts = False
        self.wants_stacks = False
        self.groups = Groups()
        self.locator = Locator(self.ticked)
        self.device = "cpu"
        self.devices = Devices()
        self.reducers = Reducers(self.blocked)
        self.failures = Failures()
        self._num_calls: dict[int, list[int]] = {}
        self.num_ops = 0
        self._works: dict[int, Call] = {}
        self._results: dict[int, Call] = {}
        self._announced: dict[tuple[int, str], Request] = {}
        self._contents: TensorIdentity | None = None
        self.before_first_wait: Callable[[], None] | None = None

    def set_buffers(self, buffers: tuple[Sink, ...]) -> None:
        """Report to these buffers from now on."""
        self.buffers = buffers
        self.span_keepers = tuple([each.keep_span for each in buffers if each.wants_spans])
        self.wants_layouts = any(each.wants_layouts for each in buffers)
        self.wants_stacks = any(each.wants_stacks for each in buffers)
        if any(each.wants_contents for each in buffers):
            self._contents = self._contents or TensorIdentity()
        else:
            self._contents = None

    def forget(self) -> None:
        """Drop the state that only matters while a buffer listens; names start anew."""
        forget_marks()
        self.locator = Locator(self.ticked)
        self.groups = Groups()
        self.devices = Devices()
        self.reducers = Reducers(self.blocked)
        self.failures = Failures()
        self._works.clear()
        self._results.clear()
        self._announced.clear()

    def ticked(self, source: str, thing: Any) -> None:
        """Report a returned call that may end a step of this thread."""
        try:
            at, begin = now(), self.locator.modules.first_call_ns
            if self._contents is not None and source == OPTIMIZER:
                self._contents.step(thing)
            rank = dist.get_rank() if dist.is_initialized() else None
            for buffer in self.buffers:
                if buffer.rank in (None, rank) or rank is None:
                    buffer.tick(source, thing, at, begin)
        except Exception as error:
            self.failures.append(error)

    def numbering(self, *, with_ops: bool) -> Numbering:
        """Return a numbering that starts now."""
        seqs = {group: group.seq for group in self.groups}
        calls = {rank: count[0] for rank, count in list(self._num_calls.items())}
        return Numbering(calls, seqs, self.num_ops if with_ops else None)

    def issue(
        self,
        native_op: str,
        signature: Signature,
        args: Sequence[Any],
        frame: FrameType | None,
        state: ThreadState,
    ) -> Call | None:
        """Return the call about to be made; None if a compiler is only tracing it."""
        try:
            request = self._request(native_op, signature, args, state.reduce_op)
            if not request.is_computed and _is_tracing():
                return None
            if signature.is_async is None and signature.kind in _BLOCKING_TRANSFERS:
                request.is_async = not _is_blocking_transfer(frame)
            location = self.locator.locate(frame, state, request.sent, request.dtype)
            call = Call(request, location, state)
            if self.wants_stacks:
                call.stack = whole_stack(frame, state)
            if self._contents is not None and request.is_computed:
                identify(call, args, self._contents)
            self._number(call, request.group)
            state.num_issued += 1
            state.issued = native_op
            for buffer in self.buffers:
                buffer.add(call)
            call.issue = now()
            return call
        except Exception as error:
            self.failures.append(error)
            return None

    def runs_in_cpp(self, tensor: Any, group: Any) -> bool:
        """Return whether a functional collective runs no Python: plain CPU tensor, C++ backend."""
        if type(tensor) is not torch.Tensor or not tensor.is_cpu or tensor.is_complex():
            return False
        try:
            return tensor.layout is torch.strided and self.groups.of(resolve(group)).is_in_cpp
        except Exception:  # no such group; the operator raises
            return False

    def _request(
        self, native_op: str, signature: Signature, args: Sequence[Any], reduce_op: str
    ) -> Request:
        """Return the arguments' values; one announcement object is one collective, read once."""
        told, process_group = announcement(), resolve(args[signature.group])
        if told is not None:
            known = self._announced.get((id(told), native_op))
            if known is not None and known.group.process_group() is process_group:
                return known
        group = self.groups.of(process_group)
        request = Request(native_op, signature, group, told)
        read_arguments(request, args, reduce_op)
        if request.device != "cpu" and request.is_computed:
            self.device = request.device
        if told is not None:
            if not group.row.mesh_axis:
                group.learn_axis(told.axis)
            # Operators outside c10d are announced the same with and without data.
            if request.is_computed and native_op.startswith("c10d::"):
                if len(self._announced) >= _MAX_ANNOUNCED:
                    self._announced.clear()
                request.is_shared = True
                self._announced[id(told), native_op] = request
        return request

    def _number(self, call: Call, group: Group) -> None:
        """Assign the next numbers; atomic, since no function is called and no thread switches."""
        numbers = self._num_calls
        count = numbers.get(group.rank) or numbers.setdefault(group.rank, [0])
        call.id = count[0]
        count[0] += 1
        call.seq = group.seq
        group.seq += 1

    def raised(self, call: Call) -> None:
        """Settle a call whose operator raised."""
        call.returned = now()
        call.is_settled = True

    def returned(self, call: Call, result: Any, state: ThreadState) -> None:
        """Handle the return of an operator; `result` may contain a handle to wait for."""
        call.returned = returned = now()
        try:
            request = call.request
            if request.signature.received == RESULT:
                read_result(request, result)
            if request.group.is_fake:  # complete at once, and unboxing is costly
                call.end = returned
                call.is_settled = True
                return
            if state.functional is not None:
                state.functional.append(call)
                return
            work = _work_in(result)
            if work is None or isinstance(work, FakeWork):
                call.end = returned
                call.is_settled = True
                return
            call.work = weakref.ref(work)
            self._works[id(work)] = call
            state.last = work
            if request.is_async:
                self._await_completion(call, work)
                told = call.location[4]
                if told is not None and told.is_reducers:
                    self.reducers.sent(call)
                elif state.unseen is not None:
                    call.is_owed = True
                    state.unseen.append(call)
        except Exception as error:
            self.failures.append(error)

    def _await_completion(self, call: Call, work: Any) -> None:
        """Watch for the completion of a call that the program may never wait for in Python.

        Not on accelerators, where a future's callback would make its stream wait.
        """
        if call.request.device != "cpu":
            return

        try:
            future = work.get_future()
        except RuntimeError:  # the backend has none
            return
        future.add_done_callback(Completion(call))

    def await_callbacks(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for backends to release completions that they have reported."""
        deadline = now() + round(timeout_s * NANOSECONDS_PER_SECOND)
        while Completion.kept:
            if now() > deadline:  # of calls still in progress
                Completion.kept.clear()
            else:
                sleep(_POLL_S)

    def returned_functional(self, calls: Sequence[Call], result: Any) -> None:
        """Handle the return of a functional collective that issued `calls`: expect waits for it."""
        try:
            tensors = tensors_of(result)
            if len(calls) != len(tensors):
                calls = [calls[0]] * len(tensors)
            for tensor, call in zip(tensors, calls, strict=True):
                self._expect_wait(call, tensor)
        except Exception as error:
            self.failures.append(error)

    def _expect_wait(self, call: Call, tensor: torch.Tensor) -> None:
        if not call.request.is_computed:
            call.end = call.returned
            call.is_settled = True
            return
        results, key = self._results, tensor.data_ptr()
        former = results.pop(key, None)
        if former is None and len(results) > _MAX_RESULTS:
            former = results.pop(next(iter(results)))
        if former is not None:
            former.is_settled = True
        results[key] = call
        if self.before_first_wait is not None:
            self.before_first_wait()

    def call_behind(self, tensor: torch.Tensor) -> Call | None:
        """Return the call whose result `tensor` is, unless it has been waited for."""
        if not self._results or isinstance(tensor, FakeTensor):
            return None
        return self._results.pop(tensor.data_ptr(), None)

    def call_of(self, work: Any) -> Call | None:
        """Return the call that a handle belongs to, unless it has been waited for."""
        call = self._works.get(id(work))
        return call if call is not None and call.work() is work else None

    def waited(self, call: Call, begin: int, work: Any = None) -> None:
        """Record a wait that began at `begin` and has ended now, along with the call."""
        self.blocked(call, begin, now())
        if work is not None:
            self._works.pop(id(work), None)
            state = HERE.state
            if state.last is work:
                state.last = None

    def blocked(self, call: Call, begin: int, end: int) -> None:
        """Record a wait for a call from `begin` to `end`; on CPU this settles the call."""
        call.waited += end - begin
        call.num_waits += 1
        if call.request.device == "cpu":
            if call.end < 0:
                call.end = end
            call.is_settled = True
        elif call.num_waits == 1:  # the program has not waited; its stream does
            self._expect_end_on_device(call)

    def _expect_end_on_device(self, call: Call) -> None:
        try:
            self.devices.expect(call)
        except Exception as error:
            self.failures.append(error)

    def ask_devices(self) -> None:
        """Query which calls have completed on accelerators."""
        try:
            self.devices.ask()
        except Exception as error:
            self.failures.append(error)

    def drop_dead_works(self) -> None:
        """Forget handles that the program has discarded."""
        for key, call in list(self._works.items()):
            if call.work() is None:
                del self._works[key]


def _is_tracing() -> bool:
    """Return whether a compiler is tracing, with fake tensors that communicate nothing."""
    return torch.compiler.is_compiling() or TracingContext.try_get() is not None


def _work_in(result: Any) -> Any:
    """Return the handle in an operator's result: boxed, last in a tuple, or the result itself."""
    box = result[-1] if isinstance(result, (tuple, list)) and result else result
    if isinstance(box, torch.ScriptObject):
        return dist.Work.unbox(box)
    return box if isinstance(box, dist.Work) else None


def _is_blocking_transfer(frame: FrameType | None) -> bool:
    """Return whether `dist.send` or `dist.recv` makes the call; the operator is that of `isend`."""
    while frame is not None and is_library(frame):
        if frame.f_code.co_name in _BLOCKING_TRANSFERS:
            return frame.f_globals.get("__name__") == dist.distributed_c10d.__name__
        frame = frame.f_back
    return False


RECORDER = Recorder()
