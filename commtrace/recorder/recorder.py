"""Recorder of this process, notified when calls are issued, return and are waited for.

`RECORDER` is the only instance. The interception reports to it, and each call goes to the buffers
of all listening recordings. Errors inside the recorder are kept in `failures` and reported when the
recording ends; they never reach the recorded program.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from operator import length_hint
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import ScriptObject

from commtrace.recorder.attribution.locator import Locator
from commtrace.recorder.attribution.stack_frames import (
    BLOCKING_TRANSFERS,
    full_stack,
    is_blocking_transfer,
)
from commtrace.recorder.bridge import announced_reason
from commtrace.recorder.clock import now
from commtrace.recorder.events.call import Call
from commtrace.recorder.events.data_times import DataTimes
from commtrace.recorder.events.groups import Groups, resolve, unbox
from commtrace.recorder.events.later_wait import LaterWait
from commtrace.recorder.events.misfit import misfit
from commtrace.recorder.events.numbering import Numbering
from commtrace.recorder.events.pipeline_action import PipelineAction
from commtrace.recorder.events.request import Request, key_of
from commtrace.recorder.events.signature import Signature
from commtrace.recorder.events.sink import Sink, SpanKeepers
from commtrace.recorder.events.steps import OPTIMIZER
from commtrace.recorder.events.tensor_identity import TensorIdentity, sent_id
from commtrace.recorder.failures import Failures
from commtrace.recorder.interception.pending import PendingCalls
from commtrace.recorder.thread_state import (
    CURRENT,
    Collectives,
    ThreadState,
    forget_module_calls,
)
from commtrace.torch_internals.compilation import TracingContext

_MAX_ANNOUNCED = _MAX_REQUESTS = 4096
_MOST_OPS = 1 << 62
_UNKNOWN = -1


class Recorder:
    """Turns intercepted operators into calls and hands them to the buffers."""

    def __init__(self) -> None:
        self.buffers: tuple[Sink, ...] = ()
        self.span_keepers = SpanKeepers(())
        self.wants_layouts = False
        self.wants_stacks = False
        self.failures = Failures()
        self.pending = PendingCalls(self.failures)
        self.pending.waited_again = self._waited_again
        self.groups = Groups()
        self.exception_passed: Callable[[BaseException], None] = _ignored
        self.locator = Locator(self.ticked, self._exception_passed, self.acted)
        self.device = "cpu"
        self.op_numbers = iter(range(_MOST_OPS))
        self.data_times = DataTimes()
        self._num_calls: dict[int, list[int]] = {}
        self._announced: dict[tuple[int, str], Request] = {}
        self._tensor_identity: TensorIdentity | None = None
        self._first_identity = 0

    def set_buffers(self, buffers: tuple[Sink, ...]) -> None:
        """Report to these buffers from now on."""
        self.buffers = buffers
        self.span_keepers = SpanKeepers(buffers)
        self.wants_layouts = any(each.wants_layouts for each in buffers)
        self.wants_stacks = any(each.wants_stacks for each in buffers)
        wants_identity = any(each.wants_tensor_identity for each in buffers)
        self.pending.data_times = self.data_times if wants_identity else None
        if not wants_identity:  # what operators write goes unnoticed from now on
            self.data_times.forget()
        self.step_began()
        if wants_identity:
            self._tensor_identity = self._tensor_identity or TensorIdentity(self._first_identity)
        elif self._tensor_identity is not None:
            # Writes go unnoticed from now on, so no later contents may have these numbers.
            self._first_identity = self._tensor_identity.next_number
            self._tensor_identity = None

    def step_began(self) -> None:
        """Record the details of operators, if a buffer wants them in its step in progress."""
        self.data_times.want_details(any([each.wants_details for each in self.buffers]))

    def forget(self) -> None:
        """Drop the state that only matters while a buffer listens; names start anew."""
        forget_module_calls()
        self.failures.clear()
        self._first_identity = 0
        self.pending.forget()
        self.data_times.forget()
        self.groups = Groups()
        self.locator = Locator(self.ticked, self._exception_passed, self.acted)
        self._announced.clear()

    def _exception_passed(self, error: BaseException) -> None:
        self.exception_passed(error)

    def ticked(self, source: str, thing: Any) -> None:
        """Report a returned call that may end a step of this thread."""
        try:
            at, begin = now(), self.locator.modules.first_call_ns
            if self._tensor_identity is not None and source == OPTIMIZER:
                self._tensor_identity.step(thing)
                self.data_times.stepped()
            rank = dist.get_rank() if dist.is_initialized() else None
            for buffer in self.buffers:
                if buffer.rank in (None, rank) or rank is None:
                    buffer.tick(source, thing, at, begin)
            self.step_began()
        except Exception as error:
            self.failures.append(error)

    def acted(self, action: PipelineAction) -> None:
        """Report a computation of a pipeline stage that has ended."""
        try:
            for buffer in self.buffers:
                if buffer.rank in (None, action.rank) or action.rank is None:
                    buffer.add_action(action)
        except Exception as error:
            self.failures.append(error)

    @property
    def num_ops(self) -> int:
        """Number of the next operator."""
        return _MOST_OPS - length_hint(self.op_numbers)

    @property
    def num_issued(self) -> int:
        """Number of calls that this process has issued."""
        return sum(count[0] for count in list(self._num_calls.values()))

    def numbering(self, *, with_ops: bool) -> Numbering:
        """Return a numbering that starts now."""
        seqs = {group: group.seq for group in self.groups}
        # A copy, since other threads may add ranks meanwhile.
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
            collectives = state.collectives
            request = self._request(native_op, signature, args, collectives)
            if not request.is_computed and _is_tracing():
                return None
            if signature.is_async is None and signature.kind in BLOCKING_TRANSFERS:
                request.set_async(not is_blocking_transfer(frame))
            location = self.locator.locate(frame, state, request.sent, request.dtype)
            stack = full_stack(frame, state) if self.wants_stacks else ()
            identity = _UNKNOWN
            if self._tensor_identity is not None and request.is_computed:
                identity = sent_id(signature, args, self._tensor_identity)
            group = request.group
            # Atomic, since no function is called and no thread switches.
            # The number is in a list, which is true even while the number is 0.
            count = self._num_calls.get(group.rank) or self._new_count(group.rank)
            number, seq = count[0], group.seq
            count[0] = number + 1
            group.seq = seq + 1
            call = Call(request, location, state, number, seq, stack, identity)
            collectives.num_issued += 1
            collectives.last_op = native_op
            for buffer in self.buffers:
                buffer.add(call)
            if self.pending.data_times is not None:
                sent = collectives.functional_sent
                self.pending.data_times.issued(call, args, now(), sent)
            if request.input_splits or request.output_splits:
                self._report_misfit(call)
            # Taken last, so that the recorder's own work is no part of the call's duration.
            call.issued(now())
            return call
        except Exception as error:
            self.failures.append(error)
            return None

    def raised(self, call: Call, error: BaseException, state: ThreadState) -> None:
        """Note that the operator of a call has raised; inside a module, that notes the error."""
        call.raised()
        if state.modules.innermost is None:
            self.exception_passed(error)

    def wait_raised(self, error: BaseException) -> None:
        """Note that the wait for a call has raised, as `raised` does."""
        if CURRENT.modules.innermost is None:
            self.exception_passed(error)

    def _waited_again(self, call: Call, begin: int, duration: int, thread: int) -> None:
        """Report a wait for a call that has been waited for before."""
        try:
            wait, rank = LaterWait(call, begin, duration, thread), call.request.group.rank
            for buffer in self.buffers:
                if buffer.rank in (None, rank):
                    buffer.add_later_wait(wait)
        except Exception as error:
            self.failures.append(error)

    def _report_misfit(self, call: Call) -> None:
        """Warn, before anything is sent, if the splits of an all-to-all do not fit."""
        if text := misfit(call.request):
            place = call.location
            with contextlib.suppress(RuntimeWarning):  # a filter may turn it into an error
                warnings.warn_explicit(text, RuntimeWarning, place.file or "?", max(place.line, 1))

    def _new_count(self, rank: int) -> list[int]:
        # Threads of one rank may get here together, and all must count in the same list.
        return self._num_calls.setdefault(rank, [0])

    def runs_in_cpp(self, tensor: Any, group: Any) -> bool:
        """Return whether a functional collective runs no Python: plain CPU tensor, C++ backend."""
        if type(tensor) is not torch.Tensor or not tensor.is_cpu or tensor.is_complex():
            return False
        try:
            return tensor.layout is torch.strided and self.groups.of(resolve(group)).is_in_cpp
        except Exception:  # no such group; the operator raises
            return False

    def _request(
        self, native_op: str, signature: Signature, args: Sequence[Any], collectives: Collectives
    ) -> Request:
        """Return the arguments' values; a `Reason` is a single collective, read once."""
        reason, group_argument = announced_reason(), args[signature.group]
        # A call less for the box that c10d's own functions pass.
        is_boxed = type(group_argument) is ScriptObject
        process_group = unbox(group_argument) if is_boxed else resolve(group_argument)
        if reason is not None:
            known = self._announced.get((id(reason), native_op))
            if (
                known is not None
                and known.signature is signature  # a functional operator has other arguments
                and known.group.process_group() is process_group
            ):
                return known
        group = self.groups.of(process_group)
        key = None
        if reason is None:
            key = key_of(native_op, signature, args, collectives.reduce_op)
            if (known := group.requests.get(key)) is not None:
                return known
        request = Request(native_op, signature, group, reason)
        request.read_arguments(args, collectives.reduce_op)
        if request.input_splits:
            announced = () if reason is None else reason.expert_rows
            request.state_experts(announced or collectives.expert_rows)
        if request.device != "cpu" and request.is_computed:
            self.device = request.device
        if key is not None:
            request.share()
            if len(group.requests) >= _MAX_REQUESTS:
                group.requests.clear()
            group.requests[key] = request
        if reason is not None:
            if not group.row.mesh_axis:
                group.learn_axis(reason.axis)
            # Operators outside c10d are announced the same with and without data.
            if request.is_computed and native_op.startswith("c10d::"):
                if len(self._announced) >= _MAX_ANNOUNCED:
                    self._announced.clear()
                request.share()
                # The request keeps its reason alive, so that the identity in the key is not reused.
                self._announced[id(reason), native_op] = request
        return request


def _ignored(error: BaseException) -> None:
    """Ignore an exception, while nothing is recorded."""


def _is_tracing() -> bool:
    """Return whether a compiler is tracing, with fake tensors that communicate nothing."""
    return torch.compiler.is_compiling() or TracingContext.try_get() is not None


RECORDER = Recorder()
