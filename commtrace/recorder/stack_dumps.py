"""Dumps of this process's stacks on request: by a file in the run's folder, or by a signal.

The recording's own thread looks for both once a second, so a dump works while all other threads
wait in C++, as long as they do not hold Python's lock. The signal's handler is faulthandler's: it
needs no lock and writes the bare stacks at once. From its output the thread makes the dump.

The handler is installed only if nobody else handles the signal, or in front of the program's own
handler if the user chose the signal. A handler that the program installs later replaces it.

SIGTERM, by which launchers end ranks, has the same handler if the process would end by it. It
writes the stacks, and the default action then ends the process. Readers of the spool find the text
(see `beside_spool`). The same holds for a crash in native code, unless the program handles crashes.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from commtrace.errors import CommtraceError
from commtrace.permissions import opener
from commtrace.recorder.caller_chain import code_and_line
from commtrace.recorder.requests import Requests
from commtrace.tracefile.dump_files import (
    MOST_CALLS,
    MOST_FRAMES,
    MOST_THREADS,
    REQUEST,
    StackDump,
    StackFrame,
    ThreadStack,
    dump_path,
    stacks_path,
    write_dump,
)
from commtrace.tracefile.spool_file import identity

CallsInFlight = Callable[[], Iterable[Mapping[str, Any]]]

_handled: dict[int, tuple[Any, int]] = {}
"""By signal that this module handles: the handler of Python before, and the address of ours."""

_DEFAULT_ACTION = 0
_MOST_BYTES_OF_ACTION = 512


class StackDumps:
    """Answers requests for dumps of a rank that writes a spool.

    Args:
        spool: the rank's spool.
        signal_number: signal to handle; None for none.
        is_chosen: the user has chosen the signal.
    """

    def __init__(self, spool: Path, signal_number: int | None, *, is_chosen: bool = False) -> None:
        self._spool = spool
        self._requests = Requests(spool.parent / REQUEST)
        self._stacks: int | None = None
        self._stacks_are: tuple[int, int] | None = None
        self._is_chosen = is_chosen
        self._numbers: list[int] = []
        if signal_number is not None:
            self._handle(signal_number, is_chosen=is_chosen)
        self._handle(signal.SIGTERM)
        if self._stacks is not None:
            _crashes.write_to(self._stacks)

    def _handle(self, number: int, *, is_chosen: bool = False) -> None:
        if number in _handled:  # another recording of this process
            return
        before = signal.getsignal(number)
        is_free = before == signal.SIG_DFL and _action_of(number) == _DEFAULT_ACTION
        if not is_free and not (is_chosen and callable(before)):
            return
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            if self._stacks is None:
                path = stacks_path(self._spool)
                self._stacks = opener(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
                self._stacks_are = identity(self._stacks)
            # Chained, the default action of SIGTERM ends the process; that of others must not.
            is_chained = number == signal.SIGTERM or not is_free
            faulthandler.register(number, file=self._stacks, chain=is_chained)
            _handled[number] = before, _action_of(number)
            self._numbers.append(number)

    def poll(self, rank: int, calls: CallsInFlight) -> None:
        """Write a dump if it has been requested since the last time."""
        request = self._requests.new(rank)
        self._reopen_if_closed()
        num_bytes = 0 if self._stacks is None else os.fstat(self._stacks).st_size
        if request or num_bytes:
            with contextlib.suppress(CommtraceError):  # the folder is full, or gone
                write_dump(dump_path(self._spool), dump_of_process(rank, request, calls()))
        # More was written if the process is being ended, which must stay.
        if num_bytes and self._stacks is not None and os.fstat(self._stacks).st_size == num_bytes:
            os.ftruncate(self._stacks, 0)

    def _reopen_if_closed(self) -> None:
        """Handle the signals anew if the program has closed the file, as a daemon does."""
        if self._stacks is not None and identity(self._stacks) != self._stacks_are:
            self._stacks = None
            numbers, self._numbers = self._numbers, []
            for number in numbers:
                if _is_ours(number):
                    faulthandler.unregister(number)
                    del _handled[number]
                    self._handle(number, is_chosen=self._is_chosen and number != signal.SIGTERM)
            _crashes.write_to(self._stacks)

    def close(self) -> None:
        """Stop handling the signals, unless the program has replaced the handlers."""
        if self._stacks is None:
            return
        _crashes.write_to(None)
        ours = [number for number in self._numbers if _is_ours(number)]
        for number in self._numbers:
            _handled.pop(number, None)
        for number in ours:
            faulthandler.unregister(number)
        # Else the file stays open: whoever chains to the handler writes there.
        if len(ours) == len(self._numbers) and identity(self._stacks) == self._stacks_are:
            os.close(self._stacks)
        self._stacks = None
        stacks_path(self._spool).unlink(missing_ok=True)


class _Crashes:
    """File to which faulthandler writes the stacks of a crash: of the latest recording, or none.

    It writes to the same descriptor as long as the process lives, since a program may let it write
    elsewhere, which cannot be detected.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        self._is: tuple[int, int] | None = None

    def write_to(self, stacks: int | None) -> None:
        """Write to a file from now on; None for none."""
        with contextlib.suppress(OSError, RuntimeError):
            if self._file is not None and identity(self._file) != self._is:
                self._file = None  # the program has closed it, and may use its number
                faulthandler.disable()
            target = os.open(os.devnull, os.O_WRONLY) if stacks is None else stacks
            if self._file is not None:
                os.dup2(target, self._file, inheritable=False)
            elif stacks is not None and not faulthandler.is_enabled():
                self._file = os.dup(stacks)
                faulthandler.enable(file=self._file)
            if stacks is None:
                os.close(target)
            self._is = None if self._file is None else identity(self._file)


_crashes = _Crashes()


def dump_of_process(rank: int, request: str, calls: Iterable[Mapping[str, Any]]) -> StackDump:
    """Return the stacks of all threads except the calling thread, the main thread first."""
    known = {each.ident: each for each in threading.enumerate()}
    main = threading.main_thread().ident
    frames = sys._current_frames()
    frames.pop(threading.get_ident(), None)
    idents = sorted(frames, key=lambda ident: (ident != main, ident))
    threads = tuple(
        ThreadStack(
            known[ident].name if ident in known else "not started by Python",
            (known[ident].native_id or -1) if ident in known else -1,
            _frames(frames[ident]),
        )
        for ident in idents[:MOST_THREADS]
    )
    return StackDump(
        rank=rank,
        host=socket.gethostname(),
        pid=os.getpid(),
        at_ns=time.time_ns(),
        request=request,
        threads=threads,
        calls=tuple(calls)[:MOST_CALLS],
        num_left_out=max(len(idents) - MOST_THREADS, 0),
    )


def _frames(innermost: FrameType) -> tuple[StackFrame, ...]:
    found: list[StackFrame] = []
    frame: FrameType | None = innermost
    while frame is not None and len(found) < MOST_FRAMES:
        code, line = code_and_line(frame)
        found.append((code.co_filename, line, code.co_name))
        frame = frame.f_back
    return tuple(reversed(found))


def _is_ours(number: int) -> bool:
    """Return whether a signal still has our handler, also as far as Python does not know."""
    before, ours = _handled.get(number, (None, _DEFAULT_ACTION))
    return ours != _DEFAULT_ACTION and (signal.getsignal(number), _action_of(number)) == (
        before,
        ours,
    )


def _action_of(number: int) -> int:
    """Return the address of a signal's handler; 0 is the default action, 1 ignores it."""
    action = ctypes.create_string_buffer(_MOST_BYTES_OF_ACTION)
    if ctypes.CDLL(None).sigaction(number, None, action):
        return -1
    return ctypes.cast(action, ctypes.POINTER(ctypes.c_size_t))[0]  # its first field


def _forget_in_child() -> None:
    """Let a forked child have the signals' default actions again: it is no recorded rank."""
    for number in _handled:
        if _is_ours(number):
            faulthandler.unregister(number)
    _handled.clear()
    _crashes.write_to(None)


os.register_at_fork(after_in_child=_forget_in_child)
