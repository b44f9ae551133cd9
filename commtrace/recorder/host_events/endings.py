"""Events that end a rank before the end of its program, or end a thread of the rank.

    modules of `launching`      call `ended` with what left the program
    `sys.excepthook`            other programs: an exception left the main thread
    `sys.exit`                  other programs: kept when the process ends with it
    `os._exit`                  calls `left` (see `commtrace.exit_handlers`)
    `threading.excepthook`      an exception ended a thread (kind `thread_died`)

An exception that nothing catches is of kind `fatal`, and so is an exit that states a failure;
other exits are of kind `exit`. Exits have the user's frames that led to them.

The hooks pass on to the hooks before them. A hook that the program installs later is in front.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from commtrace.recorder.attribution.stack_frames import USER, kind_of
from commtrace.recorder.events.host_event import HostEvent
from commtrace.recorder.host_events.exceptions import note_of_error, users_in
from commtrace.recorder.host_events.note import Keep, note_here, users_at
from commtrace.recorder.replaced import Replaced
from commtrace.schema import EXIT, FATAL, THREAD_DIED

_PROCESSES = "multiprocessing.process"


def is_failure(error: BaseException) -> bool:
    """Return whether an exception that leaves the program means that it failed."""
    if isinstance(error, SystemExit):
        return _is_failure_code(error.code)
    return not isinstance(error, GeneratorExit)


def _is_failure_code(code: object) -> bool:
    return code is not None and not (isinstance(code, int) and code == 0)


@dataclass(frozen=True, slots=True)
class _Exit:
    """A call of `sys.exit`, which ends the process unless the outermost frame goes on."""

    pid: int
    note: HostEvent
    frame: FrameType
    instruction: int

    def has_ended(self) -> bool:
        """Return whether the exception has left the program."""
        return self.pid == os.getpid() and self.frame.f_lasti == self.instruction


class Endings:
    """Source of exceptions that end a rank or a thread."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._is_on = self._has_ended = False
        self._exit: _Exit | None = None
        self._replaced = Replaced()

    def install(self) -> None:
        """Put the hooks in front of the program's own, including any installed since."""
        if not self._is_on:
            self._is_on, self._has_ended, self._exit = True, False, None
        for owner, name, made in (
            (sys, "excepthook", self._excepthook),
            (sys, "exit", self._exiting),
            (threading, "excepthook", self._of_thread),
        ):
            if not self._replaced.has(getattr(owner, name)):
                self._replaced.replace(owner, name, made)

    def uninstall(self) -> None:
        """Restore the hooks, unless someone has replaced them since."""
        self._is_on, self._exit = False, None
        self._replaced.restore()

    def ended(self, error: BaseException) -> None:
        """Note that an exception ends the rank; only the first counts."""
        is_exit = isinstance(error, SystemExit)
        if self._is_on and not self._has_ended and (is_exit or is_failure(error)):
            self._has_ended = True
            note = note_of_error(FATAL if is_failure(error) else EXIT, error)
            note.stack = users_in(error.__traceback__)
            self._keep(note)

    def left(self, frame: FrameType) -> None:
        """Note that `os._exit` is called in a frame."""
        if self._is_on and not self._has_ended:
            self._has_ended = True
            note = note_here(EXIT, "os._exit")
            note.stack = users_at(frame)
            if note.stack:
                note.code, note.line = note.stack[0]
            self._keep(note)

    def leaving(self) -> None:
        """Note a call of `sys.exit`, if it is what ends the process now."""
        if self._is_on and not self._has_ended and self._exit and self._exit.has_ended():
            self._has_ended = True
            self._keep(self._exit.note)

    def _excepthook(self, before: Callable[..., Any]) -> Callable[..., Any]:
        def excepthook(kind: Any, error: Any, trace: Any) -> Any:
            # An interactive interpreter shows exceptions by it, and goes on.
            is_last = not (sys.flags.interactive or hasattr(sys, "ps1"))
            if is_last and threading.current_thread() is threading.main_thread():
                self.ended(error)
            return before(kind, error, trace)

        return excepthook

    def _exiting(self, before: Callable[..., Any]) -> Callable[..., Any]:
        def exit(status: Any = None, /) -> Any:
            is_main = threading.current_thread() is threading.main_thread()
            if self._is_on and is_main:
                self._note_exit(status)
            return before(status)

        return exit

    def _note_exit(self, status: object) -> None:
        error = SystemExit(status)
        error.__context__ = sys.exc_info()[1]
        caller = sys._getframe(2)
        note = note_of_error(FATAL if is_failure(error) else EXIT, error)
        note.stack = users_at(caller)
        frame = _outermost(caller)
        self._exit = _Exit(os.getpid(), note, frame, frame.f_lasti)

    def _of_thread(self, before: Callable[..., Any]) -> Callable[..., Any]:
        def excepthook(args: Any, /) -> Any:
            error = args.exc_value
            if self._is_on and error is not None and not isinstance(error, SystemExit):
                self._keep(note_of_error(THREAD_DIED, error))
            return before(args)

        return excepthook


def _outermost(frame: FrameType) -> FrameType:
    """Return the user's outermost frame in this process, else the outermost frame of all."""
    found, each = frame, frame.f_back
    is_users = kind_of(frame) == USER
    while each is not None and each.f_globals.get("__name__") != _PROCESSES:
        if kind_of(each) == USER:
            found, is_users = each, True
        elif not is_users:
            found = each
        each = each.f_back
    return found
