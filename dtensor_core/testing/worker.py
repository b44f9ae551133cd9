"""A rank that is a process: runs the tasks of the pool and reports their outcomes.

A worker lives as long as its pool keeps it. It dies at once if the process that started it does,
whatever it is doing. Each task finds the state of a fresh process: no process group, torch's own
random seed, float32.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import pickle
import signal
import sys
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist

from dtensor_core.testing.failure import format_error, summarize
from dtensor_core.testing.reference import Reference
from dtensor_core.testing.skips import is_skip

STACKS = signal.SIGUSR1  # asks a worker to write down its stack


@dataclass(frozen=True, slots=True)
class Task:
    """One rank's task.

    Attributes:
        arguments: A pickle; it may refer to modules that `function` imports.
        on_rank: A pickle of None, or of a wrapper that calls the function with its arguments (see
            `observe.harness_observer`).
    """

    number: int
    rank: int
    world_size: int
    function: Reference
    arguments: bytes
    import_path: tuple[str, ...]
    timeout_s: float
    with_group: bool
    on_rank: bytes


@dataclass(frozen=True, slots=True)
class Returned:
    """The rank returned; `value` is a pickle."""

    value: bytes


@dataclass(frozen=True, slots=True)
class Raised:
    """The rank raised or skipped; `at_s` is when, on the clock that all processes share."""

    summary: str
    detail: str
    skipped: bool
    at_s: float


@dataclass(frozen=True, slots=True)
class Place:
    """The rank of this process in the current task, and the store where its ranks meet."""

    rank: int
    world_size: int
    store: dist.Store
    timeout: timedelta

    def init_group(self, backend: str, device: torch.device | None = None) -> None:
        """Join the default process group of this task."""
        dist.init_process_group(
            backend,
            store=self.store,
            rank=self.rank,
            world_size=self.world_size,
            timeout=self.timeout,
            device_id=device,
        )


_place: Place | None = None


def place() -> Place | None:
    """Return the calling process's place in a task; None if it is not a worker."""
    return _place


def serve(tasks: Connection, lifeline: Connection, files: tuple[str, str], port: int) -> None:
    """Run a worker: perform tasks until there are no more, or until its parent is gone."""
    output, stacks = files
    _die_with_parent(lifeline)
    _redirect(output)
    with open(stacks, "w") as stack_file:
        faulthandler.enable(stack_file)
        faulthandler.register(STACKS, stack_file, all_threads=False)
        torch.set_num_threads(1)
        # Otherwise gloo listens on the address of the host's name, which other machines may reach.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        while True:
            try:
                task: Task = pickle.loads(tasks.recv_bytes())
            except EOFError:
                return
            # The file is opened to append, so the next write starts at 0 and leaves no hole.
            os.truncate(output, 0)
            tasks.send_bytes(pickle.dumps(_perform(task, store)))
            if dist.is_initialized():  # releases the peers of a rank that raised
                dist.destroy_process_group()


def _perform(task: Task, store: dist.Store) -> Returned | Raised:
    global _place
    timeout = timedelta(seconds=task.timeout_s)
    _place = Place(
        task.rank, task.world_size, dist.PrefixStore(f"task{task.number}", store), timeout
    )
    torch.manual_seed(_FRESH_SEED)
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    # init_process_group replaces it.
    excepthook = sys.excepthook
    try:
        sys.path[:] = task.import_path
        function = task.function.resolve()
        arguments = pickle.loads(task.arguments)
        if task.with_group:
            _place.init_group("gloo")
        on_rank = pickle.loads(task.on_rank)
        value = on_rank(function, *arguments) if on_rank else function(*arguments)
        if dist.is_initialized():
            dist.barrier()  # no rank leaves while another may still be receiving
        return Returned(pickle.dumps(value))
    except BaseException as error:  # any error is the rank's outcome, reported to the pool
        at_s = time.monotonic()
        return Raised(summarize(error), format_error(error), is_skip(error), at_s)
    finally:
        sys.excepthook = excepthook
        sys.stdout.flush()
        sys.stderr.flush()
        _place = None


def _die_with_parent(lifeline: Connection) -> None:
    """Exit with the pool's process, which holds the other end of the lifeline."""

    def watch() -> None:
        try:
            lifeline.recv_bytes()
        except (EOFError, OSError):
            os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
    if sys.platform == "linux":  # also if this process is stopped, or hangs holding the lock
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _redirect(output: str) -> None:
    """Redirect all output to a file, including output from C code."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    for number, name in ((1, "stdout"), (2, "stderr")):
        setattr(sys, name, os.fdopen(number, "w", buffering=1, closefd=False))


_PR_SET_PDEATHSIG = 1
_FRESH_SEED = 67280421310721  # torch's default seed of a fresh process
