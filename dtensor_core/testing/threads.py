"""Run a function on N ranks that are threads of this process, with true numerics.

    def body(scale):
        t = torch.full((2,), float(dist.get_rank()))
        dist.all_reduce(t)
        return t * scale

    run_threads(body, 4, 10)  ->  [tensor([60., 60.])] * 4

All of `torch.distributed` works inside: the default group, sub-groups, device meshes, functional
collectives, asynchronous work. Each rank has its own random generators, which start in the caller's
state. Arguments and closures are shared between the ranks, not copied; tensors in them must only be
read. Threads and the default group persist across runs. Groups that a run makes are dropped at its
end, except the groups of a `kept_mesh`.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial, wraps
from typing import Any, ParamSpec, TypeVar

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from dtensor_core import observe
from dtensor_core.testing.failure import (
    Outcome,
    RankFailure,
    RankReport,
    format_error,
    format_wait,
    summarize,
)
from dtensor_core.testing.scheduler import Released, Run
from dtensor_core.testing.skips import raise_if_skipped
from dtensor_core.testing.thread_pool import BACKEND, ThreadPool, create_group, seat, world
from dtensor_core.torch_internals import groups
from dtensor_core.torch_internals.dispatcher import mode_flags, set_mode_flags

P = ParamSpec("P")
T = TypeVar("T")

DEFAULT_TIMEOUT_S = 60.0

# A run replaces process-wide state of c10d (see `_installed`), which two at once would mix up.
_one_run_at_a_time = threading.Lock()
_pools: dict[int, ThreadPool] = {}


def run_threads(
    fn: Callable[..., T], world_size: int, *args: Any, timeout_s: float = DEFAULT_TIMEOUT_S
) -> list[T]:
    """Run `fn(*args)` on each of `world_size` threads; return the results in rank order.

    A rank that skips skips the test.

    Args:
        fn: The function that each rank calls.
        world_size: The number of ranks.
        *args: The arguments of `fn`, the same objects on every rank.
        timeout_s: The time limit of the run in seconds.

    Raises:
        RankFailure: A rank raised; the ranks deadlocked or called collectives that don't match; or
            not all ranks joined a collective. All of these are detected at once. Also raised after
            `timeout_s`.
        RuntimeError: The caller is a rank itself.
        ValueError: `world_size` is less than 1.
    """
    if seat.pool is not None:
        raise RuntimeError("run_threads was called by a rank; ranks can't have ranks of their own")
    if world_size < 1:
        raise ValueError(f"world_size must be at least 1, got {world_size}")
    with observe.observing_harness(world_size) as on_rank, _one_run_at_a_time, _installed():
        # Taken out for the time of the run: after an interrupt it is not used again.
        pool = _pools.pop(world_size, None) or ThreadPool(world_size)
        run = pool.run(partial(on_rank, fn) if on_rank else fn, args, timeout_s)
        reports = _reports(pool, run, timeout_s)
        if reports:
            pool.start_afresh()
        else:
            pool.tidy()
        if not run.expired:  # else one of its threads may still be running: leave it alone
            _pools[world_size] = pool
    if reports:
        raise_if_skipped(run.ranks[report.rank].error for report in reports)
        failed = reports[0].outcome is Outcome.FAILED
        cause = run.ranks[reports[0].rank].error if failed else None
        raise RankFailure(reports, world_size) from cause
    return [rank.value for rank in run.ranks]  # pyright: ignore[reportReturnType]


def on_threads(
    world_size: int, *, timeout_s: float = DEFAULT_TIMEOUT_S
) -> Callable[[Callable[P, object]], Callable[P, None]]:
    """Decorate a test function to run on `world_size` ranks that are threads.

    Args:
        world_size: The number of ranks.
        timeout_s: The time limit of a call in seconds.
    """

    def decorate(fn: Callable[P, object]) -> Callable[P, None]:
        @wraps(fn)
        def test(*args: P.args, **kwargs: P.kwargs) -> None:
            run_threads(lambda: fn(*args, **kwargs), world_size, timeout_s=timeout_s)

        return test

    return decorate


def kept_mesh(
    shape: tuple[int, ...], names: tuple[str, ...] | None = None, device_type: str = "cpu"
) -> DeviceMesh:
    """Return a mesh for the calling rank that outlives the run: the same object at every call.

    All ranks must call it with equal arguments. Intended for thousands of small runs: making a mesh
    of two axes takes milliseconds, an empty run a fifth of a millisecond.

    Args:
        shape: The number of ranks along each axis.
        names: The names of the axes; unnamed if None.
        device_type: The device type of the mesh.

    Raises:
        RuntimeError: The caller is not a rank.
    """
    if seat.pool is None:
        raise RuntimeError("kept_mesh is for ranks that are threads; call it inside run_threads")
    return seat.pool.mesh(tuple(shape), names, device_type)


@contextmanager
def _installed() -> Iterator[None]:
    """Let c10d keep a world per thread; restore process-wide state that a run may change."""
    backend: Any = dist.Backend
    if BACKEND not in backend.backend_list:
        backend.register_backend(BACKEND, create_group, extended_api=True, devices=["cpu", "cuda"])
    plugin = backend._plugins[BACKEND.upper()]
    # init_process_group replaces the excepthook.
    global_world, excepthook = groups.world(), sys.excepthook
    with _warnings_restored(), _mode_flags_restored(), _properties_unlocked():
        backend._plugins[BACKEND.upper()] = backend._BackendPlugin(create_group, True)
        groups.set_world(world)
        groups.isolate_threads(True)
        try:
            yield
        finally:
            groups.isolate_threads(False)
            groups.set_world(global_world)
            backend._plugins[BACKEND.upper()] = plugin
            sys.excepthook = excepthook


@contextmanager
def _properties_unlocked() -> Iterator[None]:
    """Let several ranks compute the same cached property at once.

    Before Python 3.12, one lock is held for all instances meanwhile, so that a rank waiting inside
    of a property would block the others. Here each computation takes a lock of its own.
    """
    locked = cached_property.__get__

    def unlocked(self: cached_property[Any], instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        alone = cached_property(self.func)
        alone.attrname = self.attrname
        return locked(alone, instance, owner)

    cached_property.__get__ = unlocked
    try:
        yield
    finally:
        cached_property.__get__ = locked


@contextmanager
def _warnings_restored() -> Iterator[None]:
    """Undo the effects of `warnings.catch_warnings`, which nests per process, not per rank."""
    filters, entries = warnings.filters, list(warnings.filters)
    shown = warnings.showwarning
    try:
        yield
    finally:
        warnings.showwarning = shown
        if warnings.filters is not filters or warnings.filters != entries:
            filters[:] = entries  # pyright: ignore[reportIndexIssue]
            warnings.filters = filters
            warnings._filters_mutated()  # pyright: ignore[reportAttributeAccessIssue]


@contextmanager
def _mode_flags_restored() -> Iterator[None]:
    """Restore torch's flags for active dispatch modes, which ranks may leave changed.

    torch keeps them per process and restores them mode by mode, which fails if the modes of several
    threads overlap. Guards of compiled functions read the last of the three.
    """
    before = mode_flags()
    try:
        yield
    finally:
        set_mode_flags(before)


def _reports(pool: ThreadPool, run: Run, timeout_s: float) -> list[RankReport]:
    """Return a report for each rank that did not return, the cause first."""
    if run.expired:
        return _reports_of_expired(run, timeout_s)
    failed = [_report_of_failed(rank, run.ranks[rank].error) for rank in run.failed]
    released = [
        _report_of_released(run, rank, r.error)
        for rank, r in enumerate(run.ranks)
        if isinstance(r.error, Released)
    ]
    return failed + released or [
        RankReport(rank, Outcome.FAILED, f"returned while others had not joined {begun}")
        for rank, begun in pool.unfinished()
    ]


def _report_of_failed(rank: int, error: BaseException | None) -> RankReport:
    assert error is not None
    return RankReport(rank, Outcome.FAILED, summarize(error), format_error(error))


def _report_of_released(run: Run, rank: int, error: Released) -> RankReport:
    """Report a rank that could not go on, because of an earlier failure or of a deadlock."""
    where = format_wait(error)
    if rank in run.stuck:
        return RankReport(rank, Outcome.DEADLOCKED, f"it waits for {run.stuck[rank]}", where)
    return RankReport(rank, Outcome.RELEASED, f"it waited for {error}", where)


def _reports_of_expired(run: Run, timeout_s: float) -> list[RankReport]:
    late = f"after {timeout_s:g} s"
    running: list[RankReport] = []
    others: list[RankReport] = []
    for rank, r in enumerate(run.ranks):
        if rank in run.stuck:
            running.append(RankReport(rank, Outcome.UNFINISHED, late, run.stuck[rank]))
        elif not r.ended:
            state = f"it waited for {r.waits_for}" if r.waits_for else "it awaited its first turn"
            others.append(RankReport(rank, Outcome.UNFINISHED, f"{late} {state}"))
    return running + others
