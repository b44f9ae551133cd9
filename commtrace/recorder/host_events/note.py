"""Events noted at the nearest line of the user's code."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType

from commtrace.recorder.attribution.stack_frames import (
    INSTALLED,
    USER,
    is_own,
    kind_of,
    user_frames_from,
)
from commtrace.recorder.caller_chain import code_and_line
from commtrace.recorder.clock import now
from commtrace.recorder.events.facts import process_rank
from commtrace.recorder.events.host_event import UNKNOWN, HostEvent
from commtrace.recorder.thread_state import CallStack

_MOST_CHARACTERS = 400

Keep = Callable[[HostEvent], None]
"""Function that receives an event."""


def note_here(
    kind: str, text: str = "", *, at: int | None = None, duration: int = UNKNOWN
) -> HostEvent:
    """Return an event of the current thread, which by default begins now and has no end yet."""
    began = now() if at is None else at
    text = text[:_MOST_CHARACTERS]
    event = HostEvent(kind, began, process_rank(), threading.get_native_id(), text, duration)
    frame = nearest_of_user(sys._getframe(1))
    if frame is not None:
        event.code, event.line = code_and_line(frame)
    return event


def nearest_of_user(frame: FrameType | None) -> FrameType | None:
    """Return the nearest frame of the user's code, else of an installed package."""
    installed = None
    while frame is not None:
        kind = kind_of(frame)
        if kind == USER and not is_own(frame):
            return frame
        if kind == INSTALLED:
            installed = installed or frame
        frame = frame.f_back
    return installed


def users_at(frame: FrameType) -> CallStack:
    """Return the user's frames from a frame on, innermost first."""
    return tuple([code_and_line(each) for each in user_frames_from(frame)])
