"""Recorder of every communication call of this process, active while any recording listens.

`listen` reports every event to a buffer until `Listening.stop`. The parts: `intercept` sees the
calls and `signatures` says how to read them; `locator`, `modules` and `bridge` attribute them;
`operators` records operators; `buffer` holds everything until it is written. `device_events` learns
when an accelerator has completed a call, `dynamo_skip` keeps torch.compile out of the recorder,
`selfcheck` proves that recording is on, and `untried_torch` names operators of a new torch that
would go unrecorded.
"""

from __future__ import annotations

import os
import threading

from torch.utils._python_dispatch import _get_current_dispatch_mode

from commtrace.recorder.bridge import let_run
from commtrace.recorder.buffer import NOBODY, Buffer, Sink, Span
from commtrace.recorder.calls import Call
from commtrace.recorder.dynamo_skip import run_as_it_is
from commtrace.recorder.intercept import Interception
from commtrace.recorder.operators import OperatorMode, run_local
from commtrace.recorder.recorder import RECORDER
from commtrace.recorder.selfcheck import SelfCheck, call_nobody
from commtrace.recorder.thread_state import HERE, ThreadState
from commtrace.recorder.untried_torch import warn_of_unrecorded_operators

__all__ = ["HERE", "RECORDER", "Buffer", "Call", "Listening", "Sink", "Span", "is_heard", "listen"]

_lock = threading.RLock()
_interception = Interception(RECORDER)
_seeing_operators: list[Listening] = []


class Listening:
    """Connection of a buffer to the recorder, with the dispatch mode it may have entered."""

    def __init__(self, buffer: Sink) -> None:
        self._buffer = buffer
        self._mode: OperatorMode | None = None
        self._state: ThreadState | None = None

    def see_operators(self, rank: int) -> None:
        """Start recording the operators of the current thread."""
        state = HERE.state
        if not state.has_operator_mode:
            self._mode, self._state = OperatorMode(RECORDER, rank), state
            self._mode.__enter__()
            state.has_operator_mode = True
            _seeing_operators.append(self)
            let_run(run_local)

    def leave_operators(self) -> None:
        """Stop recording the operators of the current thread, if this connection records them."""
        state = HERE.state
        if self._mode is not None and self._state is state:
            self._mode.__exit__(None, None, None)
            state.has_operator_mode = False
            self._mode = None
            _seeing_operators.remove(self)

    @property
    def is_innermost(self) -> bool:
        """Return whether this connection's mode is the innermost dispatch mode of the thread."""
        return self._mode is _get_current_dispatch_mode()

    def stop(self) -> None:
        """Disconnect the buffer; the last buffer to disconnect removes the interception."""
        self.leave_operators()
        with _lock:
            before = RECORDER.buffers
            RECORDER.set_buffers(tuple(each for each in before if each is not self._buffer))
            if not RECORDER.span_keepers:
                let_run(None)
            if before and not RECORDER.buffers:
                _interception.uninstall()
                RECORDER.locator.uninstall()


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
            warn_of_unrecorded_operators()
            run_as_it_is()
            RECORDER.locator.install()
            _interception.install()
        RECORDER.set_buffers((*RECORDER.buffers, buffer))
    return Listening(buffer)


def is_heard(buffer: Sink) -> bool:
    """Return whether `buffer` receives calls now, tested with a call that reaches no other rank."""
    if buffer not in RECORDER.buffers:
        return False
    witness = SelfCheck()
    of_any_rank = [each for each in RECORDER.buffers if each.rank is None]
    for each in of_any_rank:
        each.rank = NOBODY
    listening = listen(witness)
    try:
        call_nobody()
    finally:
        listening.stop()
        for each in of_any_rank:
            each.rank = None
    return witness.has_seen


def _forget_in_child() -> None:
    """Stop recording in a forked child; the parent writes the spool."""
    RECORDER.set_buffers(())
    for each in list(_seeing_operators):
        if each.is_innermost:
            each.leave_operators()


os.register_at_fork(after_in_child=_forget_in_child)
