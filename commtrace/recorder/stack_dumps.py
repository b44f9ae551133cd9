"""Dumps of this process's stacks on request: of a file in the run's folder, or of a signal.

The recording's own thread looks for both once a second, so a dump works while all other threads
wait in C++, as long as they do not hold Python's lock. The signal's handler is faulthandler's: it
needs no lock and writes the bare stacks at once. From its output the thread makes the dump.

The handler is installed only if nobody else handles the signal, or in front of the program's own
handler if the user chose the signal. A handler that the program installs later replaces it.
"""

from __future__ import annotations

import contextlib
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
from commtrace.tracefile.dump_files import (
    MOST_CALLS,
    MOST_FRAMES,
    MOST_THREADS,
    REQUEST,
    StackDump,
    StackFrame,
    ThreadStack,
    dump_path,
    requested,
    stacks_path,
    write_dump,
)
from commtrace.tracefile.spool_file import identity

CallsInFlight = Callable[[], Iterable[Mapping[str, Any]]]

_handled: dict[int, tuple[int, Any]] = {}
"""By process id, the signal that this module handles, and the handler of Python before."""


class StackDumps:
    """Answers requests for dumps of a rank that writes a spool.

    Args:
        spool: the rank's spool.
        signal_number: signal to handle; None for none.
        is_chosen: the user has chosen the signal.
    """

    def __init__(self, spool: Path, signal_number: int | None, *, is_chosen: bool = False) -> None:
        self._spool = spool
        self._request = spool.parent / REQUEST
        self._seen = _identity(self._request)  # of an earlier recording
        self._stacks: int | None = None
        self._stacks_are: tuple[int, int] | None = None
        self._is_chosen = is_chosen
        if signal_number is not None:
            self._handle(signal_number)

    def _handle(self, number: int) -> None:
        if os.getpid() in _handled:  # another recording of this process
            return
        before = signal.getsignal(number)
        is_free = before == signal.SIG_DFL and not _is_handled_in_c(number)
        if not is_free and not (self._is_chosen and callable(before)):
            return
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            path = stacks_path(self._spool)
            self._stacks = opener(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
            self._stacks_are = identity(self._stacks)
            # Chaining to the default action would end the process.
            faulthandler.register(number, file=self._stacks, chain=not is_free)
            _handled[os.getpid()] = number, before

    def poll(self, rank: int, calls: CallsInFlight) -> None:
        """Write a dump if one has been asked for since the last time."""
        request = self._new_request(rank)
        self._reopen_if_closed()
        was_signalled = self._stacks is not None and os.fstat(self._stacks).st_size > 0
        if request or was_signalled:
            with contextlib.suppress(CommtraceError):  # the folder is full, or gone
                write_dump(dump_path(self._spool), dump_of_process(rank, request, calls()))
        if was_signalled and self._stacks is not None:
            os.ftruncate(self._stacks, 0)

    def _reopen_if_closed(self) -> None:
        """Handle the signal anew if the program has closed the file, as a daemon does."""
        if self._stacks is not None and identity(self._stacks) != self._stacks_are:
            number, _ = _handled.pop(os.getpid(), (None, None))
            self._stacks = None
            if number is not None:
                faulthandler.unregister(number)
                self._handle(number)

    def _new_request(self, rank: int) -> str:
        identity = _identity(self._request)
        if identity is None or identity == self._seen:
            return ""
        self._seen = identity
        try:
            return requested(self._request, rank)
        except CommtraceError:  # removed since, or not ours
            return ""

    def close(self) -> None:
        """Stop handling the signal, unless the program has replaced the handler."""
        if self._stacks is None:
            return
        number, before = _handled.pop(os.getpid(), (None, None))
        if number is None or signal.getsignal(number) != before:
            return  # the file stays open: whoever chains to the handler writes there
        faulthandler.unregister(number)
        if identity(self._stacks) == self._stacks_are:
            os.close(self._stacks)
        self._stacks = None
        stacks_path(self._spool).unlink(missing_ok=True)


def dump_of_process(rank: int, request: str, calls: Iterable[Mapping[str, Any]]) -> StackDump:
    """Return the stacks of all threads but the calling one, the main thread first."""
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
        code = frame.f_code
        found.append((code.co_filename, frame.f_lineno or 0, code.co_name))
        frame = frame.f_back
    return tuple(reversed(found))


def _identity(path: Path) -> tuple[int, int] | None:
    """Return a file's identity, which a request that replaces it does not share."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _is_handled_in_c(number: int) -> bool:
    """Return whether the process handles or ignores a signal, also in ways unknown to Python."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        masks = [
            int(line.split()[1], 16) for line in lines if line.startswith(("SigCgt", "SigIgn"))
        ]
    except (OSError, ValueError, IndexError):
        return False
    return any(mask >> (number - 1) & 1 for mask in masks)


def _forget_in_child() -> None:
    """Let a forked child have the signal's default action again: it is no recorded rank."""
    for number, before in _handled.values():
        if signal.getsignal(number) == before:
            faulthandler.unregister(number)
    _handled.clear()


os.register_at_fork(after_in_child=_forget_in_child)
