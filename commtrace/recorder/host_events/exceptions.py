"""Exceptions after which a rank may go on elsewhere.

From Python 3.12 on, the interpreter reports those that the program catches in its own code. Before,
only those that leave a collective, the outermost module, or a data loader are known.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from types import CodeType, TracebackType
from typing import Any

from commtrace.recorder.attribution.stack_frames import USER, is_own, kind_of
from commtrace.recorder.caller_chain import line_of
from commtrace.recorder.events.host_event import HostEvent
from commtrace.recorder.host_events.note import Keep, note_here
from commtrace.recorder.thread_state import CallStack
from commtrace.schema import EXCEPTION

_NO_FAULTS = (StopIteration, StopAsyncIteration, GeneratorExit)
_NAME = "commtrace"
_MOST_CHARACTERS = 160


class Exceptions:
    """Source of exceptions."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._tool: int | None = None

    def install(self) -> None:
        """Ask the interpreter for exceptions that are caught, if it reports them."""
        if sys.version_info >= (3, 12) and self._tool is None:
            self._tool = _free_tool()
            if self._tool is not None:
                events = sys.monitoring.events.EXCEPTION_HANDLED
                sys.monitoring.register_callback(self._tool, events, self._handled)
                sys.monitoring.set_events(self._tool, events)

    def uninstall(self) -> None:
        """Stop asking."""
        if sys.version_info >= (3, 12) and self._tool is not None:
            sys.monitoring.set_events(self._tool, 0)
            sys.monitoring.free_tool_id(self._tool)
            self._tool = None

    def passed(self, error: BaseException) -> None:
        """Note that an exception leaves a collective, the outermost module or a data loader."""
        if self._tool is None:
            self._note(error)

    def _handled(self, code: CodeType, instruction: int, error: BaseException) -> None:
        # Libraries catch exceptions all the time; the program's own code decides where it goes on.
        if kind_of(sys._getframe(1)) == USER:
            self._note(error)

    def _note(self, error: BaseException) -> None:
        if isinstance(error, _NO_FAULTS):
            return
        self._keep(note_of_error(EXCEPTION, error))


def note_of_error(kind: str, error: BaseException) -> HostEvent:
    """Return an event of an exception, at the user's innermost line that it passed.

    If it passed none, it is the line of the exception that was handled meanwhile, if any, or else
    the current line.
    """
    note = note_here(kind, _text_of(error))
    passed = users_in(error.__traceback__)
    is_raised = error.__traceback__ is not None
    each = _handled_meanwhile(error)
    while not passed and each is not None and (is_raised or note.code is None):
        passed, each = users_in(each.__traceback__), _handled_meanwhile(each)
    if passed:
        note.code, note.line = passed[0]
    return note


def _free_tool() -> int | None:
    """Take a number of `sys.monitoring` that no other tool has; None if there is none."""
    if sys.version_info >= (3, 12):
        for tool in (3, 4, 2, 1, 0, 5):
            with suppress(ValueError):
                sys.monitoring.use_tool_id(tool, _NAME)
                return tool
    return None


def _text_of(error: BaseException) -> str:
    """Return the type and the first line of the message, and what explains the exception.

    For a group, this is its first exception; for an exit, the exception handled at the time.
    """
    text = _line_of(error)
    parts: Any = getattr(error, "exceptions", None)
    if isinstance(parts, tuple) and parts and isinstance(parts[0], BaseException):
        return f"{text}, first {_line_of(parts[0])}"
    handled = _handled_meanwhile(error) if isinstance(error, SystemExit) else None
    return text if handled is None else f"{text}, after {_line_of(handled)}"


def _handled_meanwhile(error: BaseException) -> BaseException | None:
    """Return the exception that is shown above another in its traceback."""
    if error.__cause__ is not None or error.__suppress_context__:
        return error.__cause__
    return error.__context__


def _line_of(error: BaseException) -> str:
    try:
        lines = (line.strip() for line in str(error).splitlines())
        text = next(filter(None, lines), "")
        if len(text) > _MOST_CHARACTERS:
            text = f"{text[:_MOST_CHARACTERS].rpartition(' ')[0]} ..."
    except Exception:  # an exception of the program may fail to print
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def users_in(traceback: TracebackType | None) -> CallStack:
    """Return the user's frames of a traceback, innermost first."""
    found = []
    while traceback is not None:
        if kind_of(traceback.tb_frame) == USER and not is_own(traceback.tb_frame):
            code = traceback.tb_frame.f_code
            found.append((code, line_of(code, traceback.tb_lasti)))
        traceback = traceback.tb_next
    return tuple(reversed(found))
