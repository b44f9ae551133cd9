"""Connection of buffers to the recorder, which is installed while any buffer listens."""

from __future__ import annotations

import os
import threading
from typing import Any, NamedTuple

from commtrace.errors import RecordingError
from commtrace.recorder.bridge import set_runner
from commtrace.recorder.events.sink import Sink
from commtrace.recorder.host_events.observer import HostEvents
from commtrace.recorder.interception.dynamo_skip import skip_own_code
from commtrace.recorder.interception.interception import Interception
from commtrace.recorder.interception.operators import OperatorMode, run_local
from commtrace.recorder.interception.untried_torch import warn_of_unrecorded_operators
from commtrace.recorder.recorder import RECORDER
from commtrace.recorder.selfcheck import SelfCheck, call_without_peers
from commtrace.recorder.thread_state import CURRENT, ThreadState, restart_run_delays
from commtrace.recorder.values.observer import ValueObserver
from commtrace.recorder.values.result_mode import ResultMode
from commtrace.torch_internals.dispatcher import (
    TorchDispatchMode,
    current_mode,
    pop_mode,
    push_mode,
)

HOST_EVENTS = HostEvents(RECORDER.failures)
"""Observer of events on the host of this process."""
OBSERVER = ValueObserver(lambda: RECORDER.locator, lambda: RECORDER.num_ops, RECORDER.failures)
"""Observer of the tensors of this process, active while a sink wants values."""

_lock = threading.RLock()
_interception = Interception(RECORDER)
_recording_operators: list[Listening] = []
_connected: list[Listening] = []


class _Suspended(NamedTuple):
    """Operator mode that was left: its thread and rank, and the mode around it."""

    state: ThreadState | None
    rank: int
    outer: Any


class Listening:
    """Connection of a buffer to the recorder, with the dispatch modes it may have entered.

    Connections of a thread share a mode of each kind. The connection that entered it leaves it, and
    another that needs it enters its own.

    Attributes:
        sink: the buffer, or the sink that has taken its place.
    """

    def __init__(self, buffer: Sink) -> None:
        self.sink = buffer
        self._mode: OperatorMode | None = None
        self._state: ThreadState | None = None
        self._rank = 0
        self._suspended: _Suspended | None = None
        self._results: ResultMode | None = None
        self._observed: ThreadState | None = None

    def record_operators(self, rank: int) -> None:
        """Start recording the operators of the current thread."""
        state = self._state = CURRENT.state
        self._rank = rank
        if not state.operators.has_mode:
            self._mode = OperatorMode(RECORDER, rank, _interception.of_operators)
            _enter(self._mode, state.operators.result_mode)
            state.operators.moved()
            state.operators.has_mode = True
            _recording_operators.append(self)
            set_runner(run_local)

    def observe_results(self) -> None:
        """Start observing the results of operators of the current thread."""
        self._observed = CURRENT.state
        self._enter_results()

    def _enter_results(self) -> None:
        """Enter the mode, unless this thread or the recording's thread is still in one."""
        state = CURRENT.state
        if self._results is not None or state.operators.result_mode is not None:
            return
        if state is not self._observed:
            RECORDER.failures.append(_lost_operators())
            return
        self._results = state.operators.result_mode = ResultMode(OBSERVER)
        self._results.__enter__()

    def _leave_results(self) -> None:
        """Leave the mode, if this is its thread."""
        operators = CURRENT.state.operators
        if self._results is not None and self._results is operators.result_mode:
            _leave(self._results)
            self._results = operators.result_mode = None

    def sinks_changed(self) -> None:
        """Report operators to the sinks that the recorder has now."""
        if self._mode is not None:
            self._mode.report_to_sinks()

    def stop_recording_operators(self) -> None:
        """Stop recording the operators of the current thread, if this connection records them."""
        self._leave_results()
        state = CURRENT.state
        if self._mode is not None and self._state is state:
            _leave(self._mode)
            state.operators.has_mode = False
            self._mode = None
            _recording_operators.remove(self)

    def report_to(self, sink: Sink) -> None:
        """Report to another sink from now on; record operators only if it wants them."""
        with _lock:
            _set_buffers(tuple([sink if each is self.sink else each for each in RECORDER.buffers]))
        self.sink = sink
        self._follow_sink()

    def _follow_sink(self) -> None:
        """Enter or leave the modes, as the sink wants."""
        if self.sink.value_sink is None and not OBSERVER.is_on and self._results is current_mode():
            self._leave_results()
        if not self.sink.wants_spans:
            self._suspend_operators()
        elif self._suspended is not None:
            self._resume_recording()
        if self.sink.value_sink is not None and self._observed is not None:
            self._enter_results()

    def _suspend_operators(self) -> None:
        """Leave the mode, unless others need it, or it is not the innermost of this thread."""
        mode = self._mode
        if mode is None or RECORDER.span_keepers.wants_spans or self._state is not CURRENT.state:
            return
        if self.is_innermost:
            self.stop_recording_operators()
            self._suspended = _Suspended(self._state, mode.rank, current_mode())
            set_runner(None)

    def _resume_recording(self) -> None:
        assert self._suspended is not None
        # Within a mode that was entered meanwhile, whose end would pop this one in its place.
        if (
            self._suspended.state is not CURRENT.state
            or self._suspended.outer is not current_mode()
        ):
            RECORDER.failures.append(_lost_operators())
            return
        rank, self._suspended = self._suspended.rank, None
        self.record_operators(rank)

    def _take_over(self) -> None:
        """Enter the modes of this thread that this connection needs, if another left them."""
        state = CURRENT.state
        if self._state is state and self._suspended is None:
            self.record_operators(self._rank)
        if state in (self._state, self._observed):
            self._follow_sink()

    @property
    def is_innermost(self) -> bool:
        """Return whether this connection's mode is the innermost dispatch mode of the thread."""
        return self._mode is current_mode()

    def stop(self) -> None:
        """Disconnect the buffer; the last buffer to disconnect removes the interception."""
        self.stop_recording_operators()
        with _lock:
            before = RECORDER.buffers
            _set_buffers(tuple(each for each in before if each is not self.sink))
            if self in _connected:
                _connected.remove(self)
            for each in _connected:
                each._take_over()
            if not RECORDER.span_keepers.wants_spans:
                set_runner(None)
            if before and not RECORDER.buffers:
                _interception.uninstall()
                RECORDER.locator.uninstall()


def _enter(mode: TorchDispatchMode, inner: TorchDispatchMode | None) -> None:
    """Enter a mode outside of another."""
    if inner is not None:
        _leave(inner)
    mode.__enter__()
    if inner is not None:
        inner.__enter__()


def _leave(mode: TorchDispatchMode) -> None:
    """Leave a mode; those that were entered after it stay."""
    inner: list[Any] = []
    while (innermost := current_mode()) is not None and innermost is not mode:
        # Its own method restores flags of torch; that of another tool may do more.
        if isinstance(innermost, (OperatorMode, ResultMode)):
            innermost.__exit__(None, None, None)
        else:
            pop_mode(None)
        inner.append(innermost)
    if innermost is mode:
        mode.__exit__(None, None, None)
    for each in reversed(inner):
        if isinstance(each, (OperatorMode, ResultMode)):
            each.__enter__()
        else:
            push_mode(each)


def _set_buffers(buffers: tuple[Sink, ...]) -> None:
    RECORDER.set_buffers(buffers)
    wanting = (sink.value_sink for sink in buffers)
    OBSERVER.report_to([sink for sink in wanting if sink is not None])
    on_host = (sink.host_sink for sink in buffers)
    HOST_EVENTS.report_to([sink for sink in on_host if sink is not None])
    for each in list(_recording_operators):
        each.sinks_changed()


def _lost_operators() -> RecordingError:
    return RecordingError(
        "the operators of a step were not recorded",
        found="the step began on another thread, or within another dispatch mode",
        why="operators are recorded from where the last recorded step ended",
        attempt="end the steps where the recording was entered",
    )


def listen(buffer: Sink, *, again: bool = False) -> Listening:
    """Report every communication call to `buffer` from now on.

    Args:
        buffer: receives calls, operators and steps.
        again: true if `buffer` has listened before; the recorder then keeps its names and numbers.
    """
    with _lock:
        if not RECORDER.buffers:
            if not again:
                RECORDER.forget()
                OBSERVER.forget()
            restart_run_delays()
            warn_of_unrecorded_operators()
            skip_own_code()
            RECORDER.locator.install()
            RECORDER.exception_passed = HOST_EVENTS.exceptions.passed
            _interception.install()
        _set_buffers((*RECORDER.buffers, buffer))
        listening = Listening(buffer)
        _connected.append(listening)
    return listening


def ranks_changed() -> None:
    """Note that a buffer wants the operators of another rank from now on."""
    with _lock:
        _set_buffers(RECORDER.buffers)


def is_heard(buffer: Sink) -> bool:
    """Return whether `buffer` receives calls now, tested with a call that reaches no other rank."""
    if buffer not in RECORDER.buffers:
        return False
    check = SelfCheck()
    listening = listen(check)
    try:
        call_without_peers()
    finally:
        listening.stop()
    return check.has_seen


def _forget_in_child() -> None:
    """Stop recording in a forked child; the parent writes the spool."""
    _set_buffers(())
    for each in _connected:
        each.stop_recording_operators()
    _connected.clear()


os.register_at_fork(after_in_child=_forget_in_child)
