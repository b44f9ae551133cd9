"""One communication call, from its issue to its completion, and its row in table `comm`.

A call reads only values that would be gone later. Text is formatted when the call is written
(`row`), off the program's critical path.
"""

from __future__ import annotations

import weakref
from functools import lru_cache
from json import dumps
from typing import Any, Protocol

from commtrace.recorder.clock import now
from commtrace.recorder.events.location import Location, text_of_stack
from commtrace.recorder.events.numbering import Numbering
from commtrace.recorder.events.request import Request
from commtrace.recorder.thread_state import NO_SPAN, CallStack, ThreadState, operator_of

_UNKNOWN = -1


class Follower(Protocol):
    """Interface to what follows the result of a call; see `Result`."""

    def part(self) -> int:
        """Return column `used_shard`."""
        ...


class Call:
    """A call in progress or completed. Times are the recorder's clock in ns; -1 is unknown.

    A call is `issued`, has `returned` or `raised`, and is `waited` for. It is over once it has been
    `settle`d, or once the program has dropped its handle. A call that is watched or expects its
    blocked time is over only after its completion or its blocked time has been reported.

    A call outlives its tensors. It has slots, to stay below 512 bytes, and holds no object created
    in C++. Such an object would come from the allocator that serves the tensors and could occupy
    the gap that such a tensor leaves, so that the next tensor of the same size would not fit there.

    Attributes:
        id: number of the call on its rank.
        part: part of a pipeline schedule that the call belongs to.
        seq: number of the call in its group.
        functional_op: the functional collective that issued the call, if any.
        sent_id: number of the contents sent.
        data_ready_ns: when the contents had been written.
        result_used_ns: when the result was first used.
        run_delay_ns: time since the thread's preceding call for which it had no core.
        cast_dtype: type of 16 bits that a wider tensor was cast from before it is sent, or that the
            result was cast to.
        follower: knows which part of the result has been used.
        is_followed: operators that use the result are still noted.
        is_watched: the completion of the call will still be reported.
        expects_blocked_time: the blocked time of the call will still be reported.
    """

    __slots__ = (
        "cast_dtype", "complete_ns", "data_ready_ns", "expects_blocked_time", "follower",
        "functional_op", "id", "is_followed", "is_settled", "is_watched", "issue_ns", "location",
        "num_waits", "op", "op_id", "part", "region", "request", "result_used_ns", "return_ns",
        "run_delay_ns", "sent_id", "seq", "stack", "thread", "wait_begin_ns", "waited_ns", "work",
    )  # fmt: skip

    def __init__(
        self,
        request: Request,
        location: Location,
        state: ThreadState,
        number: int,
        seq: int,
        stack: CallStack = (),
        sent_id: int = _UNKNOWN,
    ) -> None:
        span = state.operators.span
        self.request = request
        self.location = location
        attribution = location.attribution
        stage = None if attribution is None else attribution.stage
        self.part = state.pipeline_part if stage is None else stage.part
        self.id = number
        self.seq = seq
        self.thread = state.native_id
        self.region = state.regions[-1] if state.regions else ""
        self.functional_op = state.collectives.functional_op
        self.op = None if span is NO_SPAN else operator_of(span)
        self.op_id = span[0]
        self.stack = stack
        self.sent_id = sent_id
        self.waited_ns = self.num_waits = 0
        self.wait_begin_ns = _UNKNOWN
        self.issue_ns = self.return_ns = self.complete_ns = _UNKNOWN
        self.data_ready_ns = self.result_used_ns = _UNKNOWN
        self.run_delay_ns = state.run_delay.since_last()
        self.cast_dtype: Any = None
        self.work: Any = None
        self.follower: Follower | None = None
        self.is_settled = self.is_watched = self.expects_blocked_time = self.is_followed = False

    def issued(self, at_ns: int) -> None:
        """Note that the operator is called."""
        self.issue_ns = at_ns

    def raised(self) -> None:
        """Note that the operator has raised."""
        self.return_ns = now()
        self.is_settled = True

    def returned(self) -> None:
        """Note that the operator has returned."""
        self.return_ns = now()

    def had_ready(self, at_ns: int) -> None:
        """Note when its data had been written; -1 if this is unknown."""
        self.data_ready_ns = at_ns

    def used(self, at_ns: int) -> None:
        """Note a use of the result by an operator that has ended; only the first use counts.

        It precedes the completion only if the call is known to be in progress still: a backend's
        report waits for the interpreter lock, and an operator may have waited for its arguments.
        """
        if self.result_used_ns < 0:
            self._ask_whether_complete(at_ns)
            self.result_used_ns = max(at_ns, self.complete_ns)

    def overwritten(self, at_ns: int) -> None:
        """Note a write to what the call sends; it counts as a use if it precedes the completion."""
        if self.result_used_ns < 0:
            self._ask_whether_complete(at_ns)
            if self.complete_ns < 0:
                self.result_used_ns = at_ns

    def _ask_whether_complete(self, at_ns: int) -> None:
        work = None if self.work is None or self.complete_ns >= 0 else self.work()
        if work is not None and _is_complete(work):
            self.complete_ns = at_ns

    def cast_to(self, dtype: Any) -> None:
        """Note the type that the data was cast from before, or that the result is cast to."""
        self.cast_dtype = dtype

    def follow(self, follower: Follower) -> None:
        """Keep what knows which part of the result has been used."""
        self.follower = follower

    def expect_uses(self) -> None:
        """Note that operators that use the result will be noted."""
        self.is_followed = True

    def expect_no_uses(self) -> None:
        """Note that no more uses of the result will be noted."""
        self.is_followed = False

    def completed_on_return(self) -> None:
        """Note that nothing is left to wait for."""
        self.complete_ns = self.return_ns
        self.is_settled = True

    def returned_work(self, work: Any) -> None:
        """Keep a weak reference to the handle to wait for."""
        self.work = weakref.ref(work)

    def expect_blocked_time(self) -> None:
        """Note that the blocked time will be reported later."""
        self.expects_blocked_time = True

    def blocked_time_reported(self) -> None:
        """Note that the blocked time has been reported, or will not be."""
        self.expects_blocked_time = False

    def watch(self) -> None:
        """Note that the completion will be reported later."""
        self.is_watched = True

    def unwatch(self) -> None:
        """Note that the completion will not be reported."""
        self.is_watched = False

    def settle(self) -> None:
        """Note that nothing more will be reported."""
        self.is_settled = True

    def completed(self, at_ns: int) -> None:
        """Note the completion, unless it is known already."""
        if self.complete_ns < 0:
            self.complete_ns = at_ns

    def completed_on_device(self, at_ns: int) -> None:
        """Note the completion that an accelerator reports, which is its last report."""
        # The mapping of the device's clock has an error, and no call ends before it begins.
        self.complete_ns = max(at_ns, self.issue_ns)
        self.give_up_completion()

    def give_up_completion(self) -> None:
        """Note that no more will be known of the completion."""
        self.is_watched, self.is_settled = False, True

    def begun_wait(self, at_ns: int) -> None:
        """Note that a thread begins to wait for the call; -1 if the wait has raised."""
        self.wait_begin_ns = at_ns

    def waited(self, begin_ns: int, end_ns: int) -> None:
        """Note a wait; it settles the call, unless only a stream of an accelerator waits."""
        self.wait_begin_ns = _UNKNOWN
        self.waited_ns += end_ns - begin_ns
        self.num_waits += 1
        if self.request.device == "cpu":
            self.completed(end_ns)
            self.is_settled = True

    def state_in_flight(self) -> tuple[int, bool]:
        """Return the values whose change makes an outstanding call be written again."""
        return self.id, self.wait_begin_ns >= 0

    def waiting_since(self) -> tuple[int, bool] | None:
        """Return since when a thread may wait for the call, and if it certainly does, or None."""
        if self.issue_ns < 0 or self.request.group.is_fake:
            return None
        if self.return_ns < 0:
            return self.issue_ns, True
        begin = self.wait_begin_ns  # once, since another thread may end the wait
        if begin >= 0:
            return begin, True
        return None if self.complete_ns >= 0 or self.is_over() else (self.issue_ns, False)

    def is_over(self) -> bool:
        """Return whether everything that can be known of the call is known."""
        if self.is_settled:
            return True
        if self.is_watched or self.expects_blocked_time:
            return False
        return self.work is not None and self.work() is None

    def may_be_used(self) -> bool:
        """Return whether it is complete, but operators may use parts of its result that count."""
        if not self.is_followed or self.complete_ns < 0:
            return False
        return self.follower is None or self.follower.part() == _UNKNOWN

    def blocked_ns(self) -> int:
        """Return the time that the thread was observed to be blocked so far; -1 if unknown."""
        if self.return_ns < 0 or self.request.group.is_fake:
            return _UNKNOWN
        begin = self.wait_begin_ns  # once, since another thread may end the wait
        waited_ns = self.waited_ns + (now() - begin if begin >= 0 else 0)
        if not self.request.is_async:
            return self.return_ns - self.issue_ns + waited_ns
        return waited_ns if self.num_waits or begin >= 0 else _UNKNOWN

    def call_site(self) -> tuple[Any, ...]:
        """Return a key of the row's columns other than the numbers.

        The request must outlive the key; code and operators, which enter by identity, live on.
        """
        location = self.location
        module_call, attribution = location.module_call, location.attribution
        return (
            self.request.identity(), self.region, self.thread, id(self.op), location.phase,
            module_call[0] if module_call else None, id(location.code), location.instruction,
            self.stack, attribution.key() if attribution else None, self.part[::2],
            self.cast_dtype, location.callers,
        )  # fmt: skip

    def numbers(self, epoch: int, step: int, numbering: Numbering) -> tuple[int, ...]:
        """Return the columns that `spool.NUMBERS` names, in that order."""
        module_call, group = self.location.module_call, self.request.group
        issued, returned, completed = self.issue_ns, self.return_ns, self.complete_ns
        number, seq, op_id = numbering.of(self.id, self.seq, self.op_id, group)
        return (
            number,
            seq,
            issued + epoch,
            returned - issued if returned >= 0 else _UNKNOWN,
            self.blocked_ns(),
            completed + epoch if completed >= 0 else _UNKNOWN,
            step,
            module_call[1] if module_call else _UNKNOWN,
            op_id,
            self.sent_id,
            # A functional collective begins before the operator that sends.
            min(self.data_ready_ns, issued) + epoch if self.data_ready_ns >= 0 else _UNKNOWN,
            max(self.result_used_ns, issued) + epoch if self.result_used_ns >= 0 else _UNKNOWN,
            self.part.micro_batch,
            _UNKNOWN if self.follower is None else self.follower.part(),
            self.run_delay_ns,
            self.request.tag,
        )

    def row(self, epoch: int, step: int, numbering: Numbering) -> tuple[Any, ...]:
        """Return the call as a row of table `comm`, in the order of its columns."""
        request, location = self.request, self.location
        group, place, attribution = request.group, location.place, location.attribution
        why = request.reason
        if why is None and attribution is not None and attribution.reason is not None:
            why = attribution.reason()
        numbers = self.numbers(epoch, step, numbering)
        number, seq, issue, duration, blocked, complete, step, module_call, op_id = numbers[:9]
        return (
            group.rank,
            number,
            request.signature.kind,
            request.native_op,
            numbering.name(group),
            seq,
            request.reduce_op,
            group.global_rank(request.root),
            group.global_rank(request.peer),
            _dtype_name(request.dtype),
            _shapes(request.sent),
            _shapes(request.received),
            request.payload,
            request.wire_bytes(),
            request.is_async,
            issue,
            duration,
            blocked,
            complete,
            step,
            location.phase,
            self.region,
            place.plain if place else "",
            place.class_name if place else "",
            module_call,
            self.thread,
            why.operator if why else str(self.op or ""),
            op_id,
            location.file,
            location.line,
            location.function,
            why.sentence if why else attribution.note() if attribution else "",
            why.argument if why else "",
            why.source if why else "",
            why.target if why else "",
            dumps(why.candidates) if why and why.candidates else "",
            why.payload_bytes if why else _UNKNOWN,
            attribution.carries if attribution else "",
            ",".join(location.parameter_names),
            text_of_stack(self.stack) if self.stack else "",
            numbers[9],  # sent_id
            request.device_name,
            _UNKNOWN,  # the stream
            "",
            "",
            _UNKNOWN,  # algorithm, protocol and channels are those of a kernel
            _splits(request.input_splits),
            _splits(request.output_splits),
            *numbers[10:12],  # data_ready_ns, result_used_ns
            _splits(request.expert_rows),
            self.part.stage,
            self.part.micro_batch,
            self.part.direction,
            _UNKNOWN,  # the time on the device, which other tools measure
            *numbers[13:15],  # used_shard, run_delay_ns
            _dtype_name(self.cast_dtype),
            numbers[15],  # tag
            location.callers.text if location.callers else "",
        )


def _is_complete(work: Any) -> bool:
    """Return whether a call is complete; gloo's future is, before its handle."""
    try:
        return work.get_future().done()
    except RuntimeError:  # the backend has none
        return work.is_completed()


@lru_cache(maxsize=64)
def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.") if dtype is not None else ""


@lru_cache(maxsize=64)
def _splits(sizes: tuple[int, ...]) -> str:
    return ",".join(map(str, sizes))


_shape_texts: dict[Any, str] = {}


def _shapes(shapes: tuple[Any, ...]) -> str:
    text = _shape_texts.get(shapes)
    if text is None:
        if len(_shape_texts) > 10_000:
            _shape_texts.clear()
        text = ";".join(f"[{','.join(map(str, shape))}]" for shape in shapes)
        _shape_texts[shapes] = text
    return text
