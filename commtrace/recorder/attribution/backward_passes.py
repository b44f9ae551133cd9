"""Code that called a backward pass, and the thread that it ran on."""

from __future__ import annotations

import sys
from types import FrameType

from commtrace.recorder.attribution.modules import call_around
from commtrace.recorder.attribution.stack_frames import engine_frame, stack_of, user_code
from commtrace.recorder.thread_state import Caller, ThreadState, state_of_thread


def begin_backward(state: ThreadState, task: int) -> None:
    """Record which code called the backward pass that this thread works on, and on which thread.

    The caller is the thread itself, unless the engine runs the pass on a thread of its own, as for
    accelerators and deep nesting. Such a thread inherits the regions of the caller.
    """
    frame = sys._getframe(1)
    engine = engine_frame(frame)
    code, instruction, callers, via = user_code(engine)
    caller = Caller(code, instruction, callers=callers, via=via)
    if state.is_engine_thread:
        thread, thread_frame = calling_thread(state)
        if code is None:
            code, instruction, callers, via = user_code(thread_frame)
        regions = thread.regions if thread else ()
        stack = stack_of(thread_frame)
        caller = Caller(code, instruction, None if engine else thread, stack, regions, callers, via)
        if state.regions == state.backward.caller.regions:  # the thread has entered none itself
            state.set_regions(regions)
    outer = call_around(frame, engine, state.modules.innermost)
    state.backward.begin(task, caller, outer)


def calling_thread(state: ThreadState) -> tuple[ThreadState | None, FrameType | None]:
    """Return the other thread that called backward, and its frame; None if several did."""
    threads = [(each, engine_frame(top)) for each, top in sys._current_frames().items()]
    calling = [(each, at) for each, at in threads if at is not None and each != state.ident]
    if len(calling) != 1:
        return None, None
    ident, frame = calling[0]
    return state_of_thread(ident), frame
