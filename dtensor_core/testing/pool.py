"""Run a function on N ranks that are processes, over gloo.

    def body(scale):
        t = torch.full((2,), float(dist.get_rank()))
        dist.all_reduce(t)
        return t * scale

    run_processes(body, 4, 10)  ->  [tensor([60., 60.])] * 4

The processes are started once and serve all calls in turn; each call gets its own process
group. After a failure they are killed, and restarted when needed. Functions are resolved by name in
the other processes; arguments and results are pickled.
"""

from __future__ import annotations

import atexit
import math
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import time
import types
import unittest
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch.distributed as dist

from dtensor_core import observe
from dtensor_core.testing import worker
from dtensor_core.testing.failure import Outcome, RankFailure, RankReport
from dtensor_core.testing.reference import reference_to
from dtensor_core.testing.worker import Raised, Returned, Task

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_TIMEOUT_S = 60.0
GRACE_S = 2.0  # after the first failure, for other ranks to report theirs
ANSWER_S = 5.0  # for ranks to report their stacks

_LOOPBACK = "127.0.0.1"
_BACKLOG = 4096


def run_processes(
    fn: Callable[..., T],
    world_size: int,
    *args: Any,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    with_group: bool = True,
) -> list[T]:
    """Run `fn(*args)` on each of `world_size` processes; return the results in rank order.

    A rank that skips skips the test. Output of the ranks is printed here when they are done.

    Args:
        fn: The function, defined at the top level of its module.
        world_size: The number of ranks.
        *args: Its arguments, which are pickled.
        timeout_s: The time limit, in seconds.
        with_group: Make the default process group; otherwise this is left to `fn`.

    Raises:
        RankFailure: A rank raised or died, or `timeout_s` was exceeded.
        RuntimeError: The caller is a rank itself.
        ValueError: `world_size` is less than 1.
    """
    if worker.place() is not None:
        raise RuntimeError(
            "run_processes was called by a rank; ranks can't have ranks of their own"
        )
    if world_size < 1:
        raise ValueError(f"world_size must be at least 1, got {world_size}")
    return _pool.run(fn, world_size, args, timeout_s, with_group)


def on_processes(
    world_size: int, *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> Callable[[Callable[P, object]], Callable[P, None]]:
    """Decorate a test function to run on `world_size` ranks that are processes.

    The test raises TypeError if it is called with keyword arguments.

    Args:
        world_size: The number of ranks.
        timeout_s: The time limit of a call in seconds.
    """

    def decorate(fn: Callable[P, object]) -> Callable[P, None]:
        @wraps(fn)
        def test(*args: P.args, **kwargs: P.kwargs) -> None:
            if kwargs:
                raise TypeError(f"{fn.__name__} takes {', '.join(kwargs)}: pass by position")
            run_processes(fn, world_size, *args, timeout_s=timeout_s)

        test.rank_function = fn  # pyright: ignore  # looked up by Reference.resolve
        return test

    return decorate


@dataclass(slots=True)
class _Worker:
    """The pool's handle of a worker process."""

    process: BaseProcess
    tasks: Connection
    lifeline: Connection
    output: Path
    stacks: Path

    def kill(self) -> None:
        """Kill the process, whatever it is doing."""
        self.process.kill()
        self.process.join(timeout=10)
        self.tasks.close()
        self.lifeline.close()

    def ask(self) -> None:
        """Request a stack dump from the process."""
        if self.process.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, worker.STACKS)

    @property
    def answers(self) -> list[str]:
        """The stacks written so far; each is complete once the next has begun, or after a crash."""
        text = self.stacks.read_text(errors="replace")
        return text.split("(most recent call first):")[1:]

    def stack(self, number: int) -> str:
        """Return the test's own frames of a stack, innermost first."""
        text = self.answers[number] if self.answers else ""
        frames = [line for line in text.splitlines() if line.lstrip().startswith("File ")]
        ours = next((i for i, line in enumerate(frames) if worker.__file__ in line), len(frames))
        return "\n".join(frames[:ours])

    @property
    def death(self) -> str:
        """The way in which the process ended, as a text."""
        self.process.join(timeout=10)
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}"


class _Pool:
    """The workers, as many as were ever needed at once; ranks are numbered as workers are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: list[_Worker] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._store: dist.TCPStore | None = None
        self._tasks = 0

    def run(
        self,
        fn: Callable[..., T],
        world_size: int,
        args: tuple[Any, ...],
        timeout_s: float,
        with_group: bool,
    ) -> list[T]:
        """Run a function on `world_size` workers, as described for `run_processes`."""
        function, arguments = reference_to(fn), pickle.dumps(args)
        with self._lock, observe.observing_harness(world_size) as on_rank:
            self._start(world_size)
            self._tasks += 1
            for rank, each in enumerate(self._workers[:world_size]):
                task = Task(
                    number=self._tasks,
                    rank=rank,
                    world_size=world_size,
                    function=function,
                    arguments=arguments,
                    import_path=tuple(sys.path),
                    timeout_s=timeout_s,
                    with_group=with_group,
                    on_rank=pickle.dumps(on_rank),
                )
                with suppress(OSError):  # a worker that is dead by now is detected below
                    each.tasks.send_bytes(pickle.dumps(task))
            try:
                call = _RankCall(self._workers[:world_size], timeout_s)
                call.collect()
            except BaseException:
                self.kill()
                raise
            if call.reports:
                self.kill()
        return call.values()

    def kill(self) -> None:
        """Kill all workers; the next run starts new workers."""
        workers, self._workers = self._workers, []
        # All are killed before the first is waited for.
        for each in workers:
            each.process.kill()
        for each in workers:
            each.kill()

    def close(self) -> None:
        """End everything that the pool has started, permanently."""
        self.kill()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _start(self, num_workers: int) -> None:
        """Start workers until at least `num_workers` are alive."""
        if any(not each.process.is_alive() for each in self._workers):
            self.kill()
        if len(self._workers) >= num_workers:
            return
        if self._store is None or self._folder is None:
            self._store = _store_on_loopback()
            self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
            atexit.register(self.close)
        with _bare_main():
            while len(self._workers) < num_workers:
                self._workers.append(self._worker(len(self._workers), self._store.port))

    def _worker(self, rank: int, port: int) -> _Worker:
        assert self._folder is not None
        context = _context()
        output, stacks = (
            Path(self._folder.name) / f"rank{rank}.{kind}" for kind in ("output", "stacks")
        )
        output.touch()
        stacks.touch()
        tasks, their_tasks = context.Pipe()
        their_lifeline, lifeline = context.Pipe(duplex=False)
        process = context.Process(
            target=worker.serve,
            args=(their_tasks, their_lifeline, (str(output), str(stacks)), port),
            name=f"rank{rank}",
            daemon=True,
        )
        process.start()
        # If this process kept the worker's ends, it would not see EOF when the worker dies.
        their_tasks.close()
        their_lifeline.close()
        return _Worker(process, tasks, lifeline, output, stacks)


class _RankCall:
    """One function on all ranks, during the run and after it."""

    def __init__(self, workers: Sequence[_Worker], timeout_s: float) -> None:
        self.reports: list[RankReport] = []
        self._workers = workers
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        self._pending = dict(enumerate(workers))
        self._values: dict[int, bytes] = {}
        self._skipped: str | None = None
        self._raised_s: dict[int, float] = {}

    def collect(self) -> None:
        """Wait for every rank, or for the first failure and its consequences."""
        while self._pending and (left := self._deadline - time.monotonic()) > 0:
            ready = wait([each.tasks for each in self._pending.values()], timeout=left)
            for rank in [r for r, each in self._pending.items() if each.tasks in ready]:
                self._receive(rank)
        late = f"after {self._timeout_s:g} s" if not self.reports else "when it was ended"
        if self._skipped is None:
            self._report_unfinished(late)
        # By time, since several answers may be found at once; a rank that died is the cause.
        self.reports.sort(key=lambda report: self._raised_s.get(report.rank, math.inf))
        self.reports.sort(key=lambda report: report.outcome is not Outcome.DIED)
        self._print_output()

    def values(self) -> list[Any]:
        """Return the results by rank, or raise according to the ranks' outcomes."""
        if self._skipped is not None:
            raise unittest.SkipTest(self._skipped)
        if self.reports:
            raise RankFailure(self.reports, len(self._workers))
        return [pickle.loads(self._values[rank]) for rank in range(len(self._workers))]

    def _receive(self, rank: int) -> None:
        each = self._pending.pop(rank)
        try:
            answer: Returned | Raised = pickle.loads(each.tasks.recv_bytes())
        except (EOFError, OSError):
            self._fail(
                RankReport(rank, Outcome.DIED, each.death, each.stack(-1), _read(each.output))
            )
            return
        if isinstance(answer, Returned):
            self._values[rank] = answer.value
        elif answer.skipped:
            self._skipped = answer.summary.partition(": ")[2]
            self._hurry()
        else:
            self._raised_s[rank] = answer.at_s
            self._fail(
                RankReport(rank, Outcome.FAILED, answer.summary, answer.detail, _read(each.output))
            )

    def _fail(self, report: RankReport) -> None:
        self.reports.append(report)
        self._hurry()

    def _hurry(self) -> None:
        self._deadline = min(self._deadline, time.monotonic() + GRACE_S)

    def _report_unfinished(self, late: str) -> None:
        """Let the remaining ranks write down their stacks before any of them is killed."""
        until = time.monotonic() + ANSWER_S
        while (unheard := self._unheard()) and time.monotonic() < until:
            for each in unheard:
                each.ask()
            time.sleep(0.05)
        stuck = [
            RankReport(rank, Outcome.UNFINISHED, late, each.stack(0), _read(each.output))
            for rank, each in self._pending.items()
        ]
        stuck.sort(key=lambda report: _waits(report.detail))  # ranks that don't wait come first
        self.reports.extend(stuck)

    def _unheard(self) -> list[_Worker]:
        """Return the ranks whose first stack may be incomplete."""
        alive = (each for each in self._pending.values() if each.process.is_alive())
        return [each for each in alive if len(each.answers) < 2]

    def _print_output(self) -> None:
        """Print the ranks' output, unless it is part of the failure's text."""
        if not self.reports:
            for rank, each in enumerate(self._workers):
                for line in _read(each.output).splitlines():
                    print(f"[rank {rank}] {line}")


def _store_on_loopback() -> dist.TCPStore:
    """Make a store that other machines cannot reach; c10d's own socket listens on all addresses."""
    listening = socket.create_server((_LOOPBACK, 0), backlog=_BACKLOG)
    return dist.TCPStore(
        _LOOPBACK,
        listening.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        use_libuv=True,
        master_listen_fd=listening.detach(),
    )


def _read(path: Path) -> str:
    """Return the end of a file that a rank wrote."""
    with suppress(OSError):
        return path.read_text(errors="replace")[-8000:]
    return ""


def _waits(stack: str) -> bool:
    """True if a rank is in a call of `torch.distributed` or of an operator."""
    innermost = "".join(stack.splitlines()[:3])
    return f"torch{os.sep}_ops.py" in innermost or "c10d_logger.py" in innermost


def _context() -> Any:
    """Return a context that starts processes quickly, forked from a server with torch loaded."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_PRELOADED, worker.__name__])
    return context


# torch loads these at the first operator on a tensor subclass, at two seconds a process.
_PRELOADED = ("torch", "torch._dynamo", "torch.distributed.tensor")


@contextmanager
def _bare_main() -> Iterator[None]:
    """Keep multiprocessing from rerunning this process's script in each worker."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


_pool = _Pool()
