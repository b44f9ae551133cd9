"""Rank processes: started, watched and ended together.

    ended = run_ranks([sys.executable, "-m", "train"], environments, is_over=lambda: False)
    ended.exit_codes[3], ended.failed_first

When a rank fails, the others are ended, after a short time in which they can write their calls.
Ranks that do not end when asked are killed after `grace_s`, or at a second request. Each rank leads
a process group, so that its children end with it. The launcher imports no torch and opens no socket
for this. In a rank, `die_with_parent` and `watch_parent` end it with its parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType

from commtrace.exit_codes import CRASHES

_POLL_INTERVAL_S = 0.05
_PEER_GRACE_S = 0.4  # time for peers of a failed rank to write; spools are flushed every 0.25 s
_TIME_TO_END_S = 0.3  # after which those who asked are told who still runs
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_PR_SET_PDEATHSIG = 1
_PARENT_POLL_INTERVAL_S = 1.0

_GRACE_S: Mapping[int, float] = {signal.SIGINT: 10.0}
_USUAL_GRACE_S = 30.0  # as batch systems have between their two signals

_GUARD = """
import os, signal, sys
groups = set()
for line in sys.stdin:
    number = int(line)
    groups.add(number) if number > 0 else groups.discard(-number)
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""
"""Program that reads ids of process groups, `-id` once a group has ended, and kills those left."""

Process = subprocess.Popen[bytes]
OnWait = Callable[[int, Sequence[int], float], None]
"""Called with the signal that asked this process to end (0: none did), the ranks that still run,
and the seconds until they are killed."""


def grace_s(number: int) -> float:
    """Return the seconds that ranks have to end after a signal; a person waits after Ctrl-C."""
    return _GRACE_S.get(number, _USUAL_GRACE_S)


@dataclass(frozen=True, slots=True)
class Ended:
    """Exit codes by rank, negative for a signal, and the ranks that failed on their own.

    Attributes:
        signal: the signal by which this process was asked to end the ranks, 0 if none.
        pids: process id of each rank.
        own: exit codes of the ranks that ended before this process ended any, or crashed.
    """

    exit_codes: Mapping[int, int]
    failed_first: tuple[int, ...] = ()
    signal: int = 0
    pids: tuple[int, ...] = field(default=(), compare=False)
    own: Mapping[int, int] = field(default_factory=dict, compare=False)


def run_ranks(
    command: Sequence[str],
    environments: Sequence[Mapping[str, str]],
    *,
    is_over: Callable[[], bool],
    on_wait: OnWait = lambda number, ranks, seconds: None,
) -> Ended:
    """Run `command` in each of the environments, one per rank, until all have ended.

    All are ended when any fails, when `is_over` returns true, or when this process is asked to end,
    which it notices if called from the main thread.

    Args:
        command: the command.
        environments: the environment of each rank.
        is_over: whether all ranks are to be ended.
        on_wait: called once if ranks that were asked to end do not do so at once.

    Raises:
        OSError: a process cannot be started; none is left running.
    """
    processes: list[Process] = []
    with contextlib.ExitStack() as stack:
        received = stack.enter_context(_signals())
        try:
            for environment in environments:
                processes.append(subprocess.Popen(command, env=environment, start_new_session=True))
            guard = stack.enter_context(_guard(processes))
            failed = _watch(processes, received, is_over, guard)
            if failed and not all(map(_has_ended, processes)):
                time.sleep(_PEER_GRACE_S)
        except BaseException:
            _end(processes, signal.SIGKILL, received, on_wait)
            raise
        number = received[0] if received else 0
        own = {rank: each.returncode for rank, each in enumerate(processes) if _has_ended(each)}
        if number or not all(each.poll() == 0 for each in processes):
            _end(processes, number or signal.SIGTERM, received, on_wait)
    codes = {rank: each.wait() for rank, each in enumerate(processes)}
    # A crash is nobody else's doing, even if it takes longer than its peers take to fail.
    own |= {rank: code for rank, code in codes.items() if -code in CRASHES}
    return Ended(codes, tuple(failed), number, tuple(each.pid for each in processes), own)


def _watch(
    processes: Sequence[Process],
    received: Sequence[int],
    is_over: Callable[[], bool],
    guard: Callable[[], None],
) -> list[int]:
    """Wait until all have ended or must be ended; return the ranks that failed."""
    while not received and not is_over():
        guard()
        failed = [rank for rank, each in enumerate(processes) if each.poll()]
        if failed or all(map(_has_ended, processes)):
            return failed
        time.sleep(_POLL_INTERVAL_S)
    return []


@contextlib.contextmanager
def _guard(processes: Sequence[Process]) -> Iterator[Callable[[], None]]:
    """Have a process kill the groups of running ranks if this process is killed during the body.

    A rank dies with its parent by itself, but what it has started, such as workers of a data
    loader, does not. The yielded function reports ranks that have ended to the guard, since their
    ids may be given to other processes.
    """
    command = [sys.executable, "-I", "-S", "-c", _GUARD]
    try:
        guard = subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:  # no more processes: the ranks run unguarded
        yield lambda: None
        return
    assert guard.stdin is not None
    told = guard.stdin
    running = {each.pid for each in processes}

    def tell(text: str) -> None:
        with contextlib.suppress(OSError):  # somebody has killed it
            told.write(text.encode())

    def forget_ended() -> None:
        ended = {each.pid for each in processes if _has_ended(each)} & running
        if ended:
            running.difference_update(ended)
            tell("".join(f"-{pid}\n" for pid in ended))

    tell("".join(f"{pid}\n" for pid in running))
    try:
        yield forget_ended
    finally:
        guard.kill()
        guard.wait()
        told.close()


def _has_ended(process: Process) -> bool:
    return process.poll() is not None


def _end(
    processes: Sequence[Process], number: int, received: Sequence[int], on_wait: OnWait
) -> None:
    """Send a signal to all; kill those left after the grace period or a second request."""
    num_requests = len(received)
    for each in processes:
        if not _has_ended(each):
            _send(each, number)
            _send(each, signal.SIGCONT)  # a process that is stopped receives no other signal
    begin = time.monotonic()
    is_told = False
    while left := [rank for rank, each in enumerate(processes) if not _has_ended(each)]:
        waited_s = time.monotonic() - begin
        if waited_s > grace_s(number) or len(received) > num_requests:
            break
        if waited_s > _TIME_TO_END_S and not is_told:
            is_told = True
            on_wait(received[-1] if received else 0, left, grace_s(number))
        time.sleep(_POLL_INTERVAL_S)
    for each in processes:  # including the children of one that has ended
        _send(each, signal.SIGKILL)


def _send(process: Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect the signals that ask this process to end, instead of ending."""
    received: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        received.append(number)

    before = {number: signal.getsignal(number) for number in _ENDING_SIGNALS}
    is_main = threading.current_thread() is threading.main_thread()
    # An ignored signal (nohup) stays ignored, and a handler set in C (None) cannot be restored.
    handled = [each for each in before if is_main and before[each] not in (None, signal.SIG_IGN)]
    for number in handled:
        signal.signal(number, note)
    try:
        yield received
    finally:
        for number in handled:
            signal.signal(number, before[number])


def die_with_parent() -> None:
    """End this process when its parent ends, however it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        watch_parent()


def watch_parent() -> None:
    """Like `die_with_parent`, within a second, for parents whose thread may end before them."""
    threading.Thread(target=_watch_parent, args=(os.getppid(),), daemon=True).start()


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_INTERVAL_S)
    # `sys.exit` would end this thread only.
    os._exit(1)
