"""Cooperative scheduler of ranks that are threads: exactly one runs at a time.

`Scheduler` takes an entry point per rank and calls each on its own thread. A rank runs until it
returns or waits for an `Awaited`; then the next ready rank continues. Ranks do not contend for the
interpreter lock, which makes naive rank threads slow. Runs are deterministic. A deadlock is
detected at once, without a timeout, because no rank is ready.

On a deadlock every waiting rank raises `Released`. The cause is an earlier rank's failure, if any,
otherwise the deadlock itself.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import torch

from dtensor_core.testing.failure import format_stack


class Awaited(Protocol):
    """Condition that a rank can wait for; `str()` describes it."""

    done: bool


class Released(BaseException):
    """Raised in a rank whose wait can't end; not an Exception, so that no test swallows it."""


class SchedulerError(RuntimeError):
    """A rank's communication was used from a thread other than the rank's own."""


@dataclass(slots=True)
class RankRun:
    """State and result of a rank's thread in a run."""

    value: object = None
    error: BaseException | None = None
    waits_for: Awaited | None = None
    ended: bool = False


@dataclass(slots=True)
class Run:
    """One function on all ranks: filled in by the rank threads, read by the caller once `over`."""

    entry: Callable[[int], object]
    ranks: list[RankRun]
    generator_states: list[torch.Tensor]
    failed: list[int] = field(default_factory=list)
    stuck: dict[int, str] = field(default_factory=dict)
    expired: bool = False
    over: threading.Lock = field(default_factory=threading.Lock)


class Scheduler:
    """Rank threads, kept from run to run.

    All methods except `run` and `close` are called by the running rank.
    """

    def __init__(self, num_ranks: int) -> None:
        self._gates = [threading.Lock() for _ in range(num_ranks)]
        for gate in self._gates:
            gate.acquire()
        self._ready: deque[int] = deque()
        self._run: Run | None = None
        self._turn = 0
        self._threads = [
            threading.Thread(target=self._serve, args=(rank,), name=f"rank{rank}", daemon=True)
            for rank in range(num_ranks)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, entry: Callable[[int], object], timeout_s: float) -> Run:
        """Call `entry(rank)` on each rank; return when all have ended or the time is up.

        Each rank starts with the caller's random generator states and continues with its own. After
        a run whose `expired` is set, this object must not be used again.
        """
        generators = _generators()
        states = [generator.get_state() for generator in generators]
        run = Run(entry, [RankRun() for _ in self._gates], states)
        run.over.acquire()
        self._run = run
        self._ready.extend(range(1, len(self._gates)))
        self._turn = 0
        self._gates[0].release()
        try:
            if not run.over.acquire(timeout=timeout_s):
                self._expire(run)
        except BaseException:
            self._expire(run)
            raise
        finally:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)
        return run

    def wait(self, rank: int, awaited: Awaited) -> None:
        """Return once `awaited.done`, letting the other ranks run meanwhile.

        Raises:
            Released: The wait can't end.
        """
        run = self._run
        assert run is not None
        mine = run.ranks[rank]
        mine.waits_for = awaited
        generators = _generators()
        states = [generator.get_state() for generator in generators]
        self._pass_on(run)
        self._gates[rank].acquire()
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        if not awaited.done or run.expired:
            raise Released(str(awaited))
        mine.waits_for = None

    def wake(self, ranks: Sequence[int], awaited: Awaited) -> None:
        """Make ready the `ranks` that wait for `awaited`, which is done now."""
        run = self._run
        assert run is not None
        for rank in ranks:
            if run.ranks[rank].waits_for is awaited and rank not in self._ready:
                self._ready.append(rank)

    def check_thread(self, rank: int) -> None:
        """Raise SchedulerError if not called on the thread of `rank`, and Released after
        the run.
        """
        if threading.get_ident() != self._threads[rank].ident:
            raise SchedulerError(
                f"rank {rank}'s process group was used from thread "
                f"{threading.current_thread().name!r}. Where ranks are threads, only the rank's "
                "own thread may communicate. Run this test on processes instead."
            )
        run = self._run
        if run is None or run.expired:
            raise Released("the run is over")

    def close(self) -> None:
        """End the threads; no run may be in progress."""
        self._run = None
        for gate in self._gates:
            gate.release()

    def _serve(self, rank: int) -> None:
        torch.autograd.set_multithreading_enabled(False)  # backward stays on the rank's thread
        # Autocast holds the lock of its cache while it casts, when another rank may have a turn.
        torch.set_autocast_cache_enabled(False)
        while True:
            self._gates[rank].acquire()
            run = self._run
            if run is None or run.expired:
                return
            self._execute(run, rank)
            if run.expired:
                return

    def _execute(self, run: Run, rank: int) -> None:
        mine = run.ranks[rank]
        # Not strict: a rank may have initialized CUDA since the run began.
        for generator, state in zip(_generators(), run.generator_states, strict=False):
            generator.set_state(state)
        try:
            mine.value = run.entry(rank)
        except BaseException as error:  # any error is the rank's outcome, reported to the caller
            mine.error = error
            if not isinstance(error, Released):
                run.failed.append(rank)
        mine.ended = True
        self._pass_on(run)

    def _pass_on(self, run: Run) -> None:
        """Give the turn to the next ready rank; if there is none, release or finish."""
        if run.expired:
            return
        if not self._ready:
            waiting = [rank for rank, r in enumerate(run.ranks) if not r.ended]
            if not waiting:
                run.over.release()
                return
            if not run.failed and not run.stuck:
                run.stuck = {rank: str(run.ranks[rank].waits_for) for rank in waiting}
            # Each gets one more turn, in which its wait raises Released.
            self._ready.extend(waiting)
        self._turn = self._ready.popleft()
        _open(self._gates[self._turn])

    def _expire(self, run: Run) -> None:
        """Handle the timeout: record the position of the running rank, and end every thread."""
        # First of all: a rank that ends meanwhile must not pass its turn on.
        run.expired = True
        frames = sys._current_frames()
        for rank, thread in enumerate(self._threads):
            if run.ranks[rank].ended or thread.ident is None:
                continue
            frame = frames.get(thread.ident)
            if rank == self._turn and frame is not None:
                run.stuck[rank] = format_stack(frame)
                _interrupt(thread.ident)
        for rank, gate in enumerate(self._gates):
            if rank != self._turn:
                _open(gate)


def _open(gate: threading.Lock) -> None:
    """Release a gate that another thread may also be releasing, once the time is up."""
    with suppress(RuntimeError):
        gate.release()


def _interrupt(thread_id: int) -> None:
    """Raise Released in a thread at its next bytecode; C code runs on until it returns."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread_id), ctypes.py_object(Released)
    )


def _generators() -> Sequence[torch.Generator]:
    """Return the generators that each rank must have for itself."""
    if torch.cuda.is_initialized():
        return (torch.default_generator, *torch.cuda.default_generators)
    return (torch.default_generator,)
