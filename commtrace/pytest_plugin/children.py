"""Processes that a test starts: those of `multiprocessing` are recorded, others are taken note of.

While a test is watched, `start()` of a process gives it a target that records itself; so do torch's
`spawn` and its multi-process test cases, which stand on it. Of another program that looks like
Python, nothing can be seen: that the test has started it is kept. So is how often torch's process
group of threads is called, which is one in Python and does not send all it does through operators.
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
    """What is told of processes."""

    def child(self) -> RankRecording | None:
        """A process of `multiprocessing` is about to start: what records it."""
        ...

    def started(self, what: str) -> None:
        """A program starts that is not recorded."""
        ...

    def passed_by(self) -> None:
        """A rank of torch's group of threads begins a collective."""
        ...


_start: Callable[[BaseProcess], None] = BaseProcess.start
_init: Callable[..., None] = subprocess.Popen.__init__
_watcher: Watcher | None = None


def watch(watcher: Watcher | None) -> None:
    """Tell `watcher` of processes from now on; None: nobody, everything is as it was."""
    global _watcher
    if watcher is not None and _watcher is None:
        BaseProcess.start = _recorded_start  # pyright: ignore[reportAttributeAccessIssue]
        subprocess.Popen.__init__ = _noted_init  # pyright: ignore[reportAttributeAccessIssue]
    elif watcher is None and _watcher is not None:
        BaseProcess.start = _start  # pyright: ignore[reportAttributeAccessIssue]
        subprocess.Popen.__init__ = _init
    _watcher = watcher
    _watch_threads()


def _watch_threads() -> None:
    """Count the collectives of torch's group of threads, where a test has loaded it."""
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
    """A class's method to begin a collective, with a word to the watcher."""

    def __init__(self, original: Any) -> None:
        self.original = original

        def begin(cls: Any, *args: Any) -> Any:
            if _watcher is not None:
                _watcher.passed_by()
            return original.__func__(cls, *args)

        super().__init__(begin)


def _recorded_start(process: Any) -> None:
    if _watcher is not None:
        own = type(process).run is not BaseProcess.run
        if own:
            _watcher.started(f"{process.name}, a process whose class has a run() of its own")
        elif getattr(process, "_target", None) is not None:
            occasion = _watcher.child()
            if occasion is not None:
                process._target = Recorded(occasion, process._target)
    _start(process)


def _noted_init(process: Any, args: Any, *rest: Any, **options: Any) -> None:
    if _watcher is not None:
        words = [args] if isinstance(args, (str, bytes, os.PathLike)) else list(args)
        text = " ".join(os.fsdecode(word) for word in words)
        names = [os.path.basename(word) for word in text.split()[:1]]
        if any(name.startswith(_PYTHONS) for name in names):
            _watcher.started(text if len(text) < 80 else f"{text[:80]}...")
    _init(process, args, *rest, **options)
