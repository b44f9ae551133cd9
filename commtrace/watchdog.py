"""A time by which all ranks are to be done; else each says where it stands, then all are ended.

A rank that ends takes its peers along: a call that waits for it raises, and would hide where it
waited. So nobody is ended before everybody has spoken, and it is not the ranks that watch the time
but the process that has started them.

A rank is asked by a signal and answers without the interpreter's lock (`faulthandler`), also while
an extension blocks all of its threads. It holds a lock on the file that it answers into for as long
as it lives, by which the number of a process that is gone is never signalled.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from commtrace.permissions import opener

Stack = list[tuple[str, int, str]]
"""File, line and function of each call, the innermost last."""

_SUFFIX = ".stack"
_QUESTION = signal.SIGUSR1
_POLL_INTERVAL_S = 0.1
_GRACE_S = 10.0  # for a rank that can't answer: stopped, or with another handler of the signal
_STACK_OF = r"^(?:Current thread|Thread) 0x0*{} .*\n((?:  .*\n)*)"
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_open_files: list[TextIO] = []


def come_under(folder: Path, rank: int) -> None:
    """Let the process that has started this one ask from now on where it stands, and end it."""
    file = open(folder / f"rank-{rank:05d}{_SUFFIX}", "w", encoding="utf-8", opener=opener)  # noqa: SIM115 - see below
    _open_files.append(file)  # closing it would let go of the lock
    fcntl.lockf(file, fcntl.LOCK_EX)
    faulthandler.register(_QUESTION, file=file)
    print(os.getpid(), f"{threading.main_thread().ident:x}", file=file, flush=True)


@dataclass(slots=True)
class Verdict:
    """Where the main threads of ranks stood that were still at work at `time_ns`; else empty."""

    time_ns: int = 0
    stacks: dict[int, Stack] = field(default_factory=dict)


@contextlib.contextmanager
def deadline(folder: Path, timeout_s: float | None) -> Iterator[Verdict]:
    """End the ranks of `folder` if one takes longer than `timeout_s`; the body waits for them.

    A rank's time begins when it comes under the deadline. None is no deadline.
    """
    verdict, is_over = Verdict(), threading.Event()
    if timeout_s is None:
        yield verdict
        return
    watch = threading.Thread(
        target=_watch, args=(folder, timeout_s, verdict, is_over), name="commtrace-deadline"
    )
    watch.start()
    try:
        yield verdict
    finally:
        is_over.set()
        watch.join()


def _watch(folder: Path, timeout_s: float, verdict: Verdict, is_over: threading.Event) -> None:
    begun: dict[int, float] = {}
    while not is_over.wait(_POLL_INTERVAL_S):
        now = _now()
        ranks = _at_work(folder)
        if any(now - begun.setdefault(each.rank, now) >= timeout_s for each in ranks):
            verdict.time_ns = time.time_ns()
            verdict.stacks = {each.rank: each.stack for each in _answered(folder)}
            for each in _at_work(folder):
                each.signal(signal.SIGKILL)
            return


def _now() -> float:
    return time.monotonic()


@dataclass(frozen=True, slots=True)
class _Rank:
    """A rank that is at work, with the stacks of its main thread that it has written so far."""

    rank: int
    pid: int
    answers: list[str]

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    @property
    def stack(self) -> Stack:
        """Where it stood when it was first asked."""
        frames = _FRAME.findall("".join(self.answers[:1]))
        return [(file, int(line), function) for file, line, function in reversed(frames)]


def _answered(folder: Path) -> list[_Rank]:
    """The ranks at work, asked until each has begun a second answer: then its first is whole."""
    until = time.monotonic() + _GRACE_S
    while unheard := [each for each in _at_work(folder) if len(each.answers) < 2]:
        if time.monotonic() > until:
            break
        for each in unheard:
            each.signal(_QUESTION)
        time.sleep(_POLL_INTERVAL_S)
    return _at_work(folder)


def _at_work(folder: Path) -> list[_Rank]:
    ranks = map(_rank, sorted(folder.glob(f"rank-*{_SUFFIX}")))
    return [rank for rank in ranks if rank is not None]


def _rank(path: Path) -> _Rank | None:
    """The rank that a file is of; None if it is gone, or not yet under the deadline."""
    with path.open("r+", encoding="utf-8", errors="replace") as file:
        head, _, answers = file.read().partition("\n")
        with contextlib.suppress(OSError):  # the rank has the lock
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return None
    if not head:
        return None
    pid, thread = head.split()
    stacks = re.findall(_STACK_OF.format(thread), answers, re.MULTILINE)
    return _Rank(int(path.stem.partition("-")[2]), int(pid), stacks)
