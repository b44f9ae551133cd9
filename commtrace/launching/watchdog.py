"""Watchdog of a launch: past its timeout, dumps the stack of every rank, then kills all ranks.

The launcher watches, not the ranks: when a rank dies, calls of its peers raise, which would hide
where they hung. So all stacks are collected before any rank is killed.

A rank dumps its stack on a signal, by `faulthandler`, which needs no interpreter lock and so works
while an extension blocks every thread. It holds a lock on its stack file while it lives; a released
lock means that the process is gone, so a reused process id is never signalled.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import linecache
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from commtrace.permissions import opener
from commtrace.tracefile.thread_dumps import dumps_in, text_of_first_dump

DumpedStack = list[tuple[str, int, str]]
"""File, line and function of each call, innermost last."""

_SUFFIX = ".stack"
_DUMP_SIGNAL = signal.SIGUSR1
_POLL_INTERVAL_S = 0.1
_GRACE_S = 10.0  # for a rank that dumps no stack: it is stopped, or handles the signal itself
_open_files: list[TextIO] = []


def register_rank(folder: Path, rank: int) -> None:
    """Register this rank: from now on the launcher can dump its stack and kill it."""
    file = open(folder / f"rank-{rank:05d}{_SUFFIX}", "w", encoding="utf-8", opener=opener)  # noqa: SIM115 - see below
    _open_files.append(file)  # closing it would let go of the lock
    fcntl.lockf(file, fcntl.LOCK_EX)
    faulthandler.register(_DUMP_SIGNAL, file=file)
    # Last, since the launcher may then send the signal, which ends a process without a handler.
    print(os.getpid(), f"{threading.main_thread().ident:x}", file=file, flush=True)


@dataclass(slots=True)
class TimeoutReport:
    """Stacks of the main threads that still ran at `time_ns`; empty if no rank timed out.

    Attributes:
        time_ns: when the time was over.
        stacks: stack of the main thread by rank.
        texts: what faulthandler wrote of all threads, by process id.
    """

    time_ns: int = 0
    stacks: dict[int, DumpedStack] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)


@contextlib.contextmanager
def watchdog(folder: Path, timeout_s: float | None) -> Iterator[TimeoutReport]:
    """Kill the ranks of `folder` if any runs longer than `timeout_s`; the body waits for them.

    A rank's time begins when it registers by `register_rank`. None sets no timeout.
    """
    report, is_over = TimeoutReport(), threading.Event()
    if timeout_s is None:
        yield report
        return
    watch = threading.Thread(
        target=_watch, args=(folder, timeout_s, report, is_over), name="commtrace-watchdog"
    )
    watch.start()
    try:
        yield report
    finally:
        is_over.set()
        watch.join()


def _watch(folder: Path, timeout_s: float, report: TimeoutReport, is_over: threading.Event) -> None:
    begun: dict[int, float] = {}
    while not is_over.wait(_POLL_INTERVAL_S):
        now = _now()
        ranks = _running(folder)
        if any(now - begun.setdefault(each.rank, now) >= timeout_s for each in ranks):
            report.time_ns = time.time_ns()
            dumped = _dumped(folder)
            report.stacks = {each.rank: each.stack for each in dumped}
            report.texts = {each.pid: each.text for each in dumped}
            for each in _running(folder):
                each.signal(signal.SIGKILL)
            return


def _now() -> float:
    return time.monotonic()


@dataclass(frozen=True, slots=True)
class _Rank:
    """A running rank, with the number of its main thread, and what it has dumped so far."""

    rank: int
    pid: int
    main_thread: int
    answers: str

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    @property
    def num_dumps(self) -> int:
        """Number of dumps that have begun."""
        return sum(
            thread.ident == self.main_thread for dump in dumps_in(self.answers) for thread in dump
        )

    @property
    def stack(self) -> DumpedStack:
        """The first stack of the main thread that it dumped, innermost call last."""
        first = dumps_in(self.answers)[:1]
        found = (thread for dump in first for thread in dump if thread.ident == self.main_thread)
        return [frame for thread in found for frame in thread.frames]

    @property
    def text(self) -> str:
        """The first dump, as it was written."""
        return text_of_first_dump(self.answers)


def _dumped(folder: Path) -> list[_Rank]:
    """Running ranks, each signalled until its second dump begins: its first is complete then."""
    until = time.monotonic() + _GRACE_S
    while unheard := [each for each in _running(folder) if each.num_dumps < 2]:
        if time.monotonic() > until:
            break
        for each in unheard:
            each.signal(_DUMP_SIGNAL)
        time.sleep(_POLL_INTERVAL_S)
    return _running(folder)


def _running(folder: Path) -> list[_Rank]:
    ranks = map(_rank, sorted(folder.glob(f"rank-*{_SUFFIX}")))
    return [rank for rank in ranks if rank is not None]


def _rank(path: Path) -> _Rank | None:
    """Rank that a stack file belongs to; None if it has ended or is not yet registered."""
    # Opened for writing, as an exclusive lock requires.
    with path.open("r+", encoding="utf-8", errors="replace") as file:
        head, _, answers = file.read().partition("\n")
        with contextlib.suppress(OSError):  # the rank has the lock
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return None
    if not head:
        return None
    pid, thread = head.split()
    return _Rank(int(path.stem.partition("-")[2]), int(pid), int(thread, 16), answers)


def format_stacks(stuck: Mapping[int, DumpedStack]) -> str:
    """Format the stacks of stuck ranks, grouping ranks with equal stacks."""
    places: dict[tuple[Any, ...], list[int]] = {}
    for rank, stack in sorted(stuck.items()):
        places.setdefault(tuple(map(tuple, stack)), []).append(rank)
    return "\n".join(
        line
        for stack, ranks in places.items()
        for line in (
            f"rank {', '.join(map(str, ranks))} was here (most recent call last):",
            *map(_frame, stack),
        )
    )


def _frame(place: tuple[str, int, str]) -> str:
    file, line, function = place
    text = linecache.getline(file, line).strip()
    return f'  File "{file}", line {line}, in {function}' + (f"\n    {text}" if text else "")
