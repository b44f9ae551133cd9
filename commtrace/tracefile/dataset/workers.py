"""Processes that work through a list of jobs, and end if their parent does.

They are started afresh (`spawn`), since a process with threads cannot be forked safely. A job and
its result are pickled through a pipe that only parent and child have open.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from commtrace.errors import CommtraceError, OutputError

J = TypeVar("J")
R = TypeVar("R")

_PARTS = ("summary", "found", "why", "attempt", "place")
_END_S = 5.0


class _Failure:
    """An error of a job, in a form that can be pickled."""

    def __init__(self, error: CommtraceError) -> None:
        self._type = type(error)
        self._parts = {name: getattr(error, name) for name in _PARTS}

    def error(self) -> CommtraceError:
        parts = dict(self._parts)
        return self._type(parts.pop("summary"), **parts)


class Workers:
    """Processes for lists of jobs, started with the first list that needs several.

    Args:
        num: number of processes; with 1, the jobs are done in this one. By default one for each
            core.
    """

    def __init__(self, num: int | None = None) -> None:
        self._num = len(os.sched_getaffinity(0)) if num is None else max(num, 1)
        self._context = multiprocessing.get_context("spawn")
        self._processes: dict[Connection, Any] = {}
        self._working: dict[Connection, int] = {}

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        for connection, process in self._processes.items():
            connection.close()
            if self._working:  # after an error
                process.terminate()
            process.join(_END_S)

    def results(self, function: Callable[[J], R], jobs: Sequence[J]) -> Iterator[tuple[int, R]]:
        """Yield the place and the result of each job, as it is done.

        Raises:
            CommtraceError: that of a job.
            OutputError: a process was killed.
        """
        num = min(self._num, len(jobs))
        if num <= 1:
            yield from ((place, function(job)) for place, job in enumerate(jobs))
            return
        while len(self._processes) < num:
            self._start()
        waiting = iter([(place, (function, job)) for place, job in enumerate(jobs)])
        for connection in self._processes:
            self._give(connection, waiting)
        while self._working:
            for connection in wait(list(self._working)):
                assert isinstance(connection, Connection)
                place = self._working[connection]
                result = _received(connection, self._processes[connection])
                del self._working[connection]
                self._give(connection, waiting)
                yield place, result

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        self._processes[ours] = process

    def _give(self, connection: Connection, waiting: Iterator[tuple[int, Any]]) -> None:
        for place, job in waiting:
            self._working[connection] = place
            connection.send(job)
            return


def _received(connection: Connection, process: Any) -> Any:
    try:
        result = connection.recv()
    except (EOFError, OSError):
        process.join(_END_S)
        raise OutputError(
            "cannot prepare the dataset",
            found=f"a worker process that ended with {_ending(process.exitcode)}",
            why="the system ends processes if the memory is used up",
            attempt="again with fewer workers, which goes on with what is prepared",
        ) from None
    if isinstance(result, _Failure):
        raise result.error()
    return result


def _ending(code: int | None) -> str:
    return f"signal {signal.Signals(-code).name}" if code and code < 0 else f"code {code}"


def _work(connection: Connection) -> None:
    """Work through jobs until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    while True:
        try:
            function, job = connection.recv()
        except (EOFError, OSError):
            return
        try:
            result = function(job)
        except CommtraceError as error:
            result = _Failure(error)
        try:
            connection.send(result)
        except OSError:  # the parent was killed
            return
