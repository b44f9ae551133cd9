"""Processes that a test starts: recorded if started by `multiprocessing`, else noted.

While a test is watched, `start()` of a process replaces its target by a recorded target. This
covers torch's `spawn` and its multi-process test cases, which are based on it. Other programs that
look like Python cannot be recorded; their start is noted. Also counted are the collectives of
torch's threaded process group, which is written in Python and bypasses the dispatcher at times.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from commtrace.pytest_plugin.rank_recording import RankRecording, Recorded

_PYTHONS = ("python", "torchrun", "pypy", "pytest", "commtrace", "accelerate", "deepspeed", "mpi")


_THREADED = "torch.testing._internal.distributed.multi_threaded_pg"


class Watcher(Protocol):
    """Interface notified of processes."""

    def child(self) -> RankRecording | None:
        """Return the recording for a `multiprocessing` process about to start, or None."""
        ...

    def started(self, program: str) -> None:
        """Note a program that starts and is not recorded."""
        ...

    def passed_by(self) -> None:
        """Note that a rank of torch's threaded process group begins a collective."""
        ...


_start: Callable[[BaseProcess], None] = BaseProcess.start
_init: Callable[..., None] = subprocess.Popen.__init__
_watcher: Watcher | None = None


def watch(watcher: Watcher | None) -> None:
    """Notify `watcher` of processes from now on; None restores the original functions."""
    global _watcher
    if watcher is not None and _watcher is None:
        BaseProcess.start = _recorded_start  # pyright: ignore[reportAttributeAccessIssue]
        subprocess.Popen.__init__ = _watched_init  # pyright: ignore[reportAttributeAccessIssue]
    elif watcher is None and _watcher is not None:
        BaseProcess.start = _start  # pyright: ignore[reportAttributeAccessIssue]
        subprocess.Popen.__init__ = _init
    _watcher = watcher
    _watch_threads()


def _watch_threads() -> None:
    """Count the collectives of torch's threaded process group, if a test has loaded it."""
    group = getattr(sys.modules.get(_THREADED), "ProcessLocalGroup", None)
    if group is None:
        return
    begin = vars(group)["_start_coll"]
    original = getattr(begin, "original", None)
    if _watcher is None and original is not None:
        group._start_coll = original
    elif _watcher is not None and original is None:
        group._start_coll = _CountedBegin(begin)


class _CountedBegin(classmethod):
    """Class method that begins a collective and notifies the watcher."""

    def __init__(self, original: Any) -> None:
        self.original = original

        def begin(cls: Any, *args: Any) -> Any:
            if _watcher is not None:
                _watcher.passed_by()
            return original.__func__(cls, *args)

        super().__init__(begin)


def _recorded_start(process: Any) -> None:
    if _watcher is not None:
        # A class that overrides `run` need not call the target that would be wrapped.
        own = type(process).run is not BaseProcess.run
        if own:
            _watcher.started(f"{process.name}, a process whose class overrides run()")
        elif getattr(process, "_target", None) is not None:
            recording = _watcher.child()
            if recording is not None:
                process._target = Recorded(recording, process._target)
    _start(process)


def _watched_init(process: Any, args: Any, *rest: Any, **options: Any) -> None:
    if _watcher is not None:
        words = [args] if isinstance(args, (str, bytes, os.PathLike)) else list(args)
        text = " ".join(os.fsdecode(word) for word in words)
        names = [os.path.basename(word) for word in text.split()[:1]]
        if any(name.startswith(_PYTHONS) for name in names):
            _watcher.started(text if len(text) < 80 else f"{text[:80]}...")
    _init(process, args, *rest, **options)
