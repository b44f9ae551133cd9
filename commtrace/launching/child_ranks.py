"""Ranks that a launched script starts itself, with `multiprocessing` or torch's `spawn`.

A process that the script starts becomes a rank when it creates a default process group; from then
on it is recorded, beside its parent. A process without a group, such as a DataLoader worker, is
ignored. So is a process whose parent has a group that is complete without it, since the child's
group then serves another purpose, such as a checkpoint. If several processes started by the
launcher would each start ranks of their own, the run is refused. Programs that the script starts
are noted.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from commtrace.atomic_write import atomic_write, finished
from commtrace.errors import UsageError
from commtrace.launching.default_group import call_for_default_group, when_c10d_is_loaded
from commtrace.launching.loopback import host_on_loopback
from commtrace.launching.processes import watch_parent
from commtrace.permissions import opener
from commtrace.process_options import ProcessOptions

_NOTES_NAME = "launch"
_GROUP_SUFFIX = ".group"
_PROGRAMS_NAME = "programs"
_ALONE_SUFFIX, _RENDEZVOUS_SUFFIX = ".alone", ".rendezvous"
_STARTERS = ("python", "pypy", "torchrun", "accelerate", "deepspeed", "horovodrun", "mpi", "ray")
_HELPER = "compile_worker"  # started by torch itself
_SHOWN_LETTERS = 80
_TIME_TO_BE_ENDED_S = 60.0
_TIME_TO_JOIN_S = 2.0
_POLL_INTERVAL_S = 0.05


def notes_of(folder: Path) -> Path:
    """Return the folder, beside the spools of a launch, of the notes of its processes."""
    return folder / _NOTES_NAME


@dataclass(frozen=True, slots=True)
class Launch:
    """A process of a launch of `num_ranks`, recorded into `folder`.

    Attributes:
        pids: process ids from the process that the launcher started, through its descendants, to
            this process.
    """

    folder: Path
    options: ProcessOptions
    num_ranks: int
    pids: tuple[int, ...]

    @property
    def notes(self) -> Path:
        """The folder of the notes that processes of the launch leave for each other."""
        return notes_of(self.folder)

    def note_group(self, num_others: int = 0) -> None:
        """Note that this process has a default group, and how many ranks it must start for it."""
        with atomic_write(self.path(_GROUP_SUFFIX)) as unfinished:
            unfinished.write_text(str(num_others), encoding="ascii")

    def num_ranks_to_start(self) -> list[int]:
        """Return the number of ranks that each ancestor with a group must start for it."""
        paths = [self.notes / f"{pid}{_GROUP_SUFFIX}" for pid in self.pids[:-1]]
        return [int(path.read_text(encoding="ascii")) for path in paths if path.exists()]

    def note_program(self, text: str) -> None:
        """Note a program that this process starts."""
        with open(self.notes / _PROGRAMS_NAME, "a", encoding="utf-8", opener=opener) as file:
            file.write(f"{text}\n")

    def path(self, suffix: str) -> Path:
        """Return the path of a note of this process."""
        return self.notes / f"{self.pids[-1]}{suffix}"

    def forget(self, suffix: str) -> None:
        """Remove a note."""
        self.path(suffix).unlink(missing_ok=True)


def num_with_group(folder: Path) -> int:
    """Return the number of recordable processes that have created a default process group."""
    return len(finished(notes_of(folder), f"*{_GROUP_SUFFIX}"))


def programs(folder: Path) -> list[str]:
    """Return the programs started by processes of a launch that may have had ranks."""
    with contextlib.suppress(FileNotFoundError):
        lines = (notes_of(folder) / _PROGRAMS_NAME).read_text(encoding="utf-8").splitlines()
        return list(dict.fromkeys(lines))
    return []


def refusal(folder: Path, *, is_over: bool) -> UsageError | None:
    """Return the error of a process that forms ranks of its own in a launch of several, or None.

    While the launch is running, a process whose parent may still join its group has no error.
    """
    for path in finished(notes_of(folder), f"*{_ALONE_SUFFIX}"):
        if is_over or time.time() - path.stat().st_mtime > _TIME_TO_JOIN_S:
            return UsageError(**json.loads(path.read_text(encoding="utf-8")))
    for path in finished(notes_of(folder), f"*{_RENDEZVOUS_SUFFIX}") if is_over else ():
        return UsageError(**json.loads(path.read_text(encoding="utf-8")))
    return None


def watch_children(launch: Launch) -> None:
    """Handle the processes that this process starts from now on; it must already be recorded."""
    _watch_starts(launch)
    when_c10d_is_loaded(
        lambda: _prepare(launch.notes, lambda: _note_launched(launch), lambda: None)
    )


def _note_launched(launch: Launch) -> None:
    num_ranks = sys.modules["torch.distributed"].get_world_size()
    launch.note_group(max(num_ranks - launch.num_ranks, 0))


_start: Callable[[BaseProcess], None] = BaseProcess.start
_init: Callable[..., None] = subprocess.Popen.__init__
_launch: Launch


def _watch_starts(launch: Launch) -> None:
    global _launch
    _launch = launch
    BaseProcess.start = _watched_start  # pyright: ignore[reportAttributeAccessIssue]
    subprocess.Popen.__init__ = _watched_init  # pyright: ignore[reportAttributeAccessIssue]


def _watched_start(process: Any) -> None:
    # An attribute of the process, which reaches the child by `spawn` (pickled) and by `fork`.
    process.run = _Child(_launch, process)
    try:
        _start(process)
    finally:
        del process.run


def _watched_init(popen: Any, args: Any, *rest: Any, **options: Any) -> None:
    if text := _starter(args):
        _launch.note_program(text)
    _init(popen, args, *rest, **options)


@dataclass(frozen=True, slots=True)
class _Child:
    """`run` of a process about to start, with the `launch` of its parent."""

    launch: Launch
    process: BaseProcess

    def __call__(self) -> None:
        # From the class, since the process's own `run` is this object.
        run = type(self.process).run
        launch = replace(self.launch, pids=(*self.launch.pids, os.getpid()))
        _watch_starts(launch)
        with contextlib.ExitStack() as stack:
            when_c10d_is_loaded(
                lambda: _prepare(
                    launch.notes,
                    on_group=lambda: _begin_rank(launch, stack),
                    on_rendezvous=lambda: _note_rendezvous(launch),
                )
            )
            try:
                run(self.process)
            except BaseException as error:
                note_end(error)
                raise


def _begin_rank(launch: Launch, stack: contextlib.ExitStack) -> None:
    """Record this process until the end of `stack`, if it is a rank of the run.

    If it cannot be a rank, it waits for the launcher to end it.

    Raises:
        UsageError: the launcher has not ended it.
    """
    num_others = launch.num_ranks_to_start()
    if not num_others and launch.num_ranks > 1:
        num_others = _await_parent(launch)
    launch.forget(_RENDEZVOUS_SUFFIX)
    if 0 in num_others:
        return
    from commtrace.session import record_process
    from commtrace.tracefile.destinations import OwnSpool

    launch.note_group()
    watch_parent()
    # Entered before the recording, so that the group outlives it.
    stack.callback(close_gloo)
    stack.enter_context(record_process(OwnSpool(launch.folder), launch.options))


def _await_parent(launch: Launch) -> list[int]:
    """Wait for `num_ranks_to_start` of a parent that is creating the same group."""
    error = _leave_refusal(launch, _ALONE_SUFFIX)
    until = time.monotonic() + _TIME_TO_BE_ENDED_S
    while not (num_others := launch.num_ranks_to_start()):
        if time.monotonic() > until:
            raise error
        time.sleep(_POLL_INTERVAL_S)
    launch.forget(_ALONE_SUFFIX)
    return num_others


def _note_rendezvous(launch: Launch) -> None:
    """Leave a refusal in case this process's group cannot be created."""
    if launch.num_ranks > 1 and not launch.num_ranks_to_start():
        _leave_refusal(launch, _RENDEZVOUS_SUFFIX)


def _leave_refusal(launch: Launch, suffix: str) -> UsageError:
    text = {
        "summary": f"cannot run {sys.argv[0]} on {launch.num_ranks} ranks",
        "found": "a process group of processes that the script starts itself",
        "why": f"each of the {launch.num_ranks} processes would start further ranks",
        "attempt": "--nproc 1, which records the ranks that the script starts",
    }
    with atomic_write(launch.path(suffix)) as unfinished:
        unfinished.write_text(json.dumps(text), encoding="utf-8")
    return UsageError(**text)


def note_end(error: BaseException) -> None:
    """Note in the recording, if any, that an exception has left the program."""
    if recorder := sys.modules.get("commtrace.recorder"):
        recorder.HOST_EVENTS.endings.ended(error)


def close_gloo() -> None:
    """Destroy a leftover gloo group, whose threads occasionally abort the exit."""
    distributed = sys.modules.get("torch.distributed")
    if distributed and distributed.is_initialized() and distributed.get_backend() == "gloo":
        distributed.destroy_process_group()


def _starter(args: Any) -> str:
    """Return a shortened command that may start ranks; empty for others and torch's helpers."""
    words = [args] if isinstance(args, (str, bytes, os.PathLike)) else list(args)
    text = " ".join(os.fsdecode(word) for word in words)
    name = os.path.basename((text.split() or [""])[0])
    if not name.startswith(_STARTERS) or _HELPER in text:
        return ""
    return text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]}..."


def _prepare(folder: Path, on_group: Callable[[], None], on_rendezvous: Callable[[], None]) -> None:
    """Keep torch's process groups on loopback, and call `on_group` for the first."""
    host_on_loopback(folder, on_rendezvous)
    call_for_default_group(on_group)
