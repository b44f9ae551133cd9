"""Processes that work through lists of jobs, and end if their parent does.

They are started afresh (`spawn`), since a process with threads cannot be forked safely. A job and
its result are pickled through a pipe that only parent and child have open.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol

from commtrace.errors import CommtraceError, OutputError

_PARTS = ("summary", "found", "why", "attempt", "place")
_END_S = 5.0


class JobRunner(Protocol):
    """Runner of lists of jobs: processes of this machine, or of others."""

    def results(
        self, function: Callable[[Any, Any], Any], shared: Any, jobs: Sequence[Any]
    ) -> Iterator[tuple[int, Any]]:
        """Yield the place and `function(shared, job)` of each job, as it is done."""
        ...


class JobFailure:
    """An error of a job, in a form that can be pickled."""

    def __init__(self, error: Exception) -> None:
        self._type = type(error)
        self._parts: dict[str, Any] = {}
        self._text = ""
        if isinstance(error, CommtraceError):
            self._parts = {name: getattr(error, name) for name in _PARTS}
        else:
            self._text = "".join(traceback.format_exception(error))

    def error(self) -> Exception:
        """Return the error, as text if it is not ours, since it may not be importable."""
        if self._text:
            return RuntimeError(f"in another process:\n{self._text}")
        parts = dict(self._parts)
        return self._type(parts.pop("summary"), **parts)


class Workers:
    """Processes for lists of jobs, started with the first list that needs several.

    Args:
        purpose: What they do, for errors: `cannot {purpose}`.
        num: Number of processes, by default one per core; with 1, the jobs run in this process.
    """

    def __init__(self, purpose: str, num: int | None = None) -> None:
        self.num = len(os.sched_getaffinity(0)) if num is None else max(num, 1)
        self._purpose = purpose
        self._context = multiprocessing.get_context("spawn")
        self._processes: dict[Connection, Any] = {}
        self._working: dict[Connection, int] = {}
        self._is_busy = False

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes."""
        for connection, process in self._processes.items():
            connection.close()
            if self._is_busy:  # after an error
                process.terminate()
            process.join(_END_S)
        self._processes.clear()
        self._working.clear()
        self._is_busy = False

    def results(
        self, function: Callable[[Any, Any], Any], shared: Any, jobs: Sequence[Any]
    ) -> Iterator[tuple[int, Any]]:
        """Yield the place and `function(shared, job)` of each job, as it is done.

        Raises:
            CommtraceError: That of a job.
            OutputError: A process was killed.
        """
        num = min(self.num, len(jobs))
        if num <= 1:
            yield from ((place, function(shared, job)) for place, job in enumerate(jobs))
            return
        if self._is_busy:  # with a list that was left at an error or interrupt
            self.close()
        self._is_busy = True
        while len(self._processes) < num:
            self._start()
        # Pickled once for all processes.
        both = ForkingPickler.dumps((function, shared))
        waiting = iter(list(enumerate(jobs)))
        for connection in self._processes:
            # A process that was killed takes nothing; waiting for its result raises the error.
            with suppress(OSError):
                connection.send_bytes(both)
            self._give(connection, waiting)
        while self._working:
            for connection in wait(list(self._working)):
                assert isinstance(connection, Connection)
                place = self._working[connection]
                result = self._received(connection)
                del self._working[connection]
                self._give(connection, waiting)
                yield place, result
        self._is_busy = False

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        self._processes[ours] = process

    def _give(self, connection: Connection, waiting: Iterator[tuple[int, Any]]) -> None:
        for place, job in waiting:
            self._working[connection] = place
            with suppress(OSError):
                connection.send((job,))
            return

    def _received(self, connection: Connection) -> Any:
        process = self._processes[connection]
        try:
            result = connection.recv()
        except (EOFError, OSError):
            process.join(_END_S)
            raise OutputError(
                f"cannot {self._purpose}",
                found=f"a worker process that ended with {_ending(process.exitcode)}",
                why="the system ends processes if the memory is used up",
                attempt="again with fewer workers, which continues with the prepared part",
            ) from None
        if isinstance(result, JobFailure):
            raise result.error()
        return result


def in_order(results: Iterator[tuple[int, Any]]) -> Iterator[Any]:
    """Yield results in the order of their jobs, each as soon as all before it are done."""
    waiting: dict[int, Any] = {}
    place = 0
    for done, result in results:
        waiting[done] = result
        while place in waiting:
            yield waiting.pop(place)
            place += 1


def _ending(code: int | None) -> str:
    return f"signal {signal.Signals(-code).name}" if code and code < 0 else f"code {code}"


def result_of(function: Callable[[Any, Any], Any], shared: Any, job: Any) -> Any:
    """Return the result of a job, or its `JobFailure`."""
    try:
        return function(shared, job)
    except Exception as error:  # raised again where the result is asked for
        return JobFailure(error)


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 1 << 30
_BLOCK_BYTES = (1 << 28, 1 << 25)
"""Size of arrays that are kept; the second is the most that former versions of glibc take."""


def _keep_freed_memory() -> None:
    """Have glibc keep freed memory for the next arrays; other systems have no such option.

    Otherwise the system clears the memory of each large array anew, which takes as long as reading
    the column that it is for.
    """
    with suppress(OSError, AttributeError):
        glibc = ctypes.CDLL(None)
        glibc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        any(glibc.mallopt(_M_MMAP_THRESHOLD, size) for size in _BLOCK_BYTES)


def _work(connection: Connection) -> None:
    """Work through jobs until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    _keep_freed_memory()
    function: Callable[[Any, Any], Any] | None = None
    shared = None
    while True:
        try:
            # A pair begins a list of jobs; each job is alone.
            message = connection.recv()
            if len(message) == 2:
                function, shared = message
                continue
            assert function is not None
            connection.send(result_of(function, shared, *message))
        except (EOFError, OSError):  # the parent closed the pipe, or was killed
            return
