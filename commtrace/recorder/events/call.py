"""One communication call, from its issue to its completion.

A call reads only values that would be gone later. Text is formatted when the call is written
(`call_row`), off the program's critical path.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from commtrace.recorder.clock import now
from commtrace.recorder.events.location import Location
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
        data_op_id: the operator that last wrote the contents.
        data_call_id: the last call whose result the contents are, or come from.
        used_by_op_id: the first operator that used the result.
        used_by_call_id: the first call that sent the result.
        run_delay_ns: time since the thread's preceding call for which it had no core.
        waits_since_ns: when the wait in progress began.
        wait_begin_ns: when the first wait for an asynchronous call began.
        first_wait_ns: how long it took.
        wait_thread: the thread that waited.
        cast_dtype: type of 16 bits that a wider tensor was cast from before it is sent, or that the
            result was cast to.
        follower: knows which part of the result has been used.
        is_followed: operators that use the result are still noted.
        is_watched: the completion of the call will still be reported.
        expects_blocked_time: the blocked time of the call will still be reported.
    """

    __slots__ = (
        "cast_dtype",
        "complete_ns",
        "data_call_id",
        "data_op_id",
        "data_ready_ns",
        "expects_blocked_time",
        "first_wait_ns",
        "follower",
        "functional_op",
        "id",
        "is_followed",
        "is_settled",
        "is_watched",
        "issue_ns",
        "location",
        "num_waits",
        "op",
        "op_id",
        "part",
        "region",
        "request",
        "result_used_ns",
        "return_ns",
        "run_delay_ns",
        "sent_id",
        "seq",
        "stack",
        "thread",
        "used_by_call_id",
        "used_by_op_id",
        "wait_begin_ns",
        "wait_thread",
        "waited_ns",
        "waits_since_ns",
        "work",
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
        self.waits_since_ns = _UNKNOWN
        self.wait_begin_ns = self.first_wait_ns = self.wait_thread = _UNKNOWN
        self.issue_ns = self.return_ns = self.complete_ns = _UNKNOWN
        self.data_ready_ns = self.result_used_ns = _UNKNOWN
        self.data_op_id = self.data_call_id = _UNKNOWN
        self.used_by_op_id = self.used_by_call_id = _UNKNOWN
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

    def used(self, at_ns: int, operator: int) -> None:
        """Note a use of the result by an operator that has ended, or a call; only the first counts.

        It precedes the completion only if the call is known to be in progress still: a backend's
        report waits for the interpreter lock, and an operator may have waited for its arguments.
        """
        if operator >= 0:
            self.used_by(operator)
        if self.result_used_ns < 0 and self.request.is_timed:
            self._ask_whether_complete(at_ns)
            self.result_used_ns = max(at_ns, self.complete_ns)

    def used_by(self, operator: int) -> None:
        """Note the number of an operator that used the result; only the first counts."""
        if self.used_by_op_id < 0:
            self.used_by_op_id = operator

    def sent_by(self, call: Call) -> None:
        """Note a call of the rank that sends the result; only the first counts."""
        if self.used_by_call_id < 0:
            self.used_by_call_id = call.id

    def came_from(self, operator: int, call: int) -> None:
        """Note the operator that wrote the contents, and the call that they come from."""
        self.data_op_id, self.data_call_id = operator, call

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
        if self.request.is_timed:
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

    def begun_wait(self, at_ns: int, thread: int) -> None:
        """Note that a thread begins to wait for the call."""
        self.waits_since_ns = at_ns
        if self.wait_begin_ns < 0 and self.request.is_async:
            self.wait_begin_ns, self.wait_thread = at_ns, thread

    def waited(self, begin_ns: int, end_ns: int, thread: int) -> bool:
        """Note a wait; it settles the call, unless only a stream of an accelerator waits.

        Return whether it is no later wait for an asynchronous call than the first.
        """
        self.waited_ns += end_ns - begin_ns
        self.num_waits += 1
        is_first = self.wait_ended(begin_ns, end_ns, thread)
        if self.request.device == "cpu":
            self.completed(end_ns)
            self.is_settled = True
        return is_first

    def wait_ended(self, begin_ns: int, end_ns: int, thread: int) -> bool:
        """Note the end of a wait, which may have raised; return the same as `waited`."""
        self.waits_since_ns = _UNKNOWN
        if not self.request.is_async:
            return True
        if self.wait_begin_ns < 0:  # in C++, so that its beginning went unnoticed
            self.wait_begin_ns, self.wait_thread = begin_ns, thread
        if self.first_wait_ns >= 0 or (begin_ns, thread) != (self.wait_begin_ns, self.wait_thread):
            return False
        self.first_wait_ns = end_ns - begin_ns
        return True

    def state_in_flight(self) -> tuple[int, bool]:
        """Return the values whose change makes an outstanding call be written again."""
        return self.id, self.waits_since_ns >= 0

    def waiting_since(self) -> tuple[int, bool] | None:
        """Return since when a thread may wait for the call, and if it certainly does, or None."""
        if self.issue_ns < 0 or self.request.group.is_fake:
            return None
        if self.return_ns < 0:
            return self.issue_ns, True
        begin = self.waits_since_ns  # once, since another thread may end the wait
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
        """Return whether it is over, but operators may use parts of its result that count."""
        if not self.request.is_timed:
            return self.is_followed and self.used_by_op_id < 0 and self.used_by_call_id < 0
        if not self.is_followed or self.complete_ns < 0:
            return False
        return self.follower is None or self.follower.part() == _UNKNOWN

    def blocked_ns(self) -> int:
        """Return the time that the thread was observed to be blocked so far; -1 if unknown."""
        if self.return_ns < 0 or self.request.group.is_fake:
            return _UNKNOWN
        begin = self.waits_since_ns  # once, since another thread may end the wait
        waited_ns = self.waited_ns + (now() - begin if begin >= 0 else 0)
        if not self.request.is_async:
            return self.return_ns - self.issue_ns + waited_ns
        return waited_ns if self.num_waits or begin >= 0 else _UNKNOWN


def _is_complete(work: Any) -> bool:
    """Return whether a call is complete; gloo's future is, before its handle."""
    try:
        return work.get_future().done()
    except RuntimeError:  # the backend has none
        return work.is_completed()
