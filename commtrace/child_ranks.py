"""Ranks that a launched script starts by itself, with `multiprocessing` or torch's `spawn`.

A process that the script starts becomes a rank when it makes a default process group: from then on
it is recorded, beside the process that has started it. One that makes none, such as a worker of a
DataLoader, is left alone, and so is one whose parent has a group that is complete without it: that
of the child serves something else, a checkpoint for instance. Where the launcher has started
several processes, each of which would start ranks of its own, the run is refused. Programs that
the script starts are noted.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from commtrace.atomic_write import whole
from commtrace.errors import UsageError
from commtrace.loopback import meet_on_loopback
from commtrace.permissions import opener
from commtrace.processes import watch_parent

_C10D = "torch.distributed.distributed_c10d"
_GROUP_SUFFIX = ".group"
_PROGRAMS_NAME = "programs"
_ALONE_SUFFIX, _MEETING_SUFFIX = ".alone", ".meeting"
_STARTERS = ("python", "pypy", "torchrun", "accelerate", "deepspeed", "horovodrun", "mpi", "ray")
_HELPER = "compile_worker"  # torch starts it by itself
_SHOWN_LETTERS = 80
_TIME_TO_BE_ENDED_S = 60.0
_TIME_TO_JOIN_S = 2.0
_POLL_INTERVAL_S = 0.05


@dataclass(frozen=True, slots=True)
class Launch:
    """A process of a launch of `num_ranks`, recorded into `folder`.

    `pids` are the numbers of the process that the launcher has started, of one that this has
    started, and so on, up to the process that is meant.
    """

    folder: Path
    detail: str
    stacks: bool
    num_ranks: int
    pids: tuple[int, ...]

    def note_group(self, num_others: int = 0) -> None:
        """Leave word that it has a default process group, of which it has to start some others."""
        with whole(self.path(_GROUP_SUFFIX)) as unfinished:
            unfinished.write_text(str(num_others), encoding="ascii")

    def others_wanted(self) -> list[int]:
        """Number of others that each process above it that has a group has to start for it."""
        paths = [self.folder / f"{pid}{_GROUP_SUFFIX}" for pid in self.pids[:-1]]
        return [int(path.read_text(encoding="ascii")) for path in paths if path.exists()]

    def note_program(self, text: str) -> None:
        """Leave word of a program that it starts."""
        with open(self.folder / _PROGRAMS_NAME, "a", encoding="utf-8", opener=opener) as file:
            file.write(f"{text}\n")

    def path(self, suffix: str) -> Path:
        """The place of a note of this process."""
        return self.folder / f"{self.pids[-1]}{suffix}"

    def forget(self, suffix: str) -> None:
        """Take back a note."""
        self.path(suffix).unlink(missing_ok=True)


def num_with_group(folder: Path) -> int:
    """Number of recordable processes that have made a default process group."""
    return len(list(folder.glob(f"*{_GROUP_SUFFIX}")))


def programs(folder: Path) -> list[str]:
    """The programs that processes of a launch have started and that may have had ranks."""
    with contextlib.suppress(FileNotFoundError):
        lines = (folder / _PROGRAMS_NAME).read_text(encoding="utf-8").splitlines()
        return list(dict.fromkeys(lines))
    return []


def refusal(folder: Path, *, is_over: bool) -> UsageError | None:
    """The error of a process that is a rank of its own in a launch of several; None without one.

    While the launch is not over, one whose parent may yet join its group has no error.
    """
    for path in folder.glob(f"*{_ALONE_SUFFIX}"):
        if is_over or time.time() - path.stat().st_mtime > _TIME_TO_JOIN_S:
            return UsageError(**json.loads(path.read_text(encoding="utf-8")))
    for path in folder.glob(f"*{_MEETING_SUFFIX}") if is_over else ():
        return UsageError(**json.loads(path.read_text(encoding="utf-8")))
    return None


def watch_children(launch: Launch) -> None:
    """See to the processes that this one, which is to be recorded already, starts from now on."""
    _watch_starts(launch)
    _when_loaded(lambda: _prepare(launch.folder, lambda: _note_launched(launch), lambda: None))


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
    subprocess.Popen.__init__ = _noted_init  # pyright: ignore[reportAttributeAccessIssue]


def _watched_start(process: Any) -> None:
    process.run = _Child(_launch, process)
    try:
        _start(process)
    finally:
        del process.run


def _noted_init(popen: Any, args: Any, *rest: Any, **options: Any) -> None:
    if text := _starter(args):
        _launch.note_program(text)
    _init(popen, args, *rest, **options)


@dataclass(frozen=True, slots=True)
class _Child:
    """The `run` of a process that is about to start; `launch` is that of the one that starts it."""

    launch: Launch
    process: BaseProcess

    def __call__(self) -> None:
        run = type(self.process).run
        launch = replace(self.launch, pids=(*self.launch.pids, os.getpid()))
        _watch_starts(launch)
        with contextlib.ExitStack() as stack:
            _when_loaded(
                lambda: _prepare(
                    launch.folder,
                    on_group=lambda: _begin_rank(launch, stack),
                    on_meeting=lambda: _note_meeting(launch),
                )
            )
            run(self.process)


def _begin_rank(launch: Launch, stack: contextlib.ExitStack) -> None:
    """Record this process until the end of `stack`, where it is a rank of the run.

    Where it can be none it waits to be ended by the launcher, and raises UsageError if it isn't.
    """
    wanted = launch.others_wanted()
    if not wanted and launch.num_ranks > 1:
        wanted = _await_parent(launch)
    launch.forget(_MEETING_SUFFIX)
    if 0 in wanted:
        return
    from commtrace.session import record_spawned

    launch.note_group()
    watch_parent()
    stack.callback(close_gloo)
    stack.enter_context(record_spawned(launch.folder, launch.detail, stacks=launch.stacks))


def _await_parent(launch: Launch) -> list[int]:
    """`others_wanted` of a parent that makes the same group just now."""
    error = _leave_refusal(launch, _ALONE_SUFFIX)
    until = time.monotonic() + _TIME_TO_BE_ENDED_S
    while not (wanted := launch.others_wanted()):
        if time.monotonic() > until:
            raise error
        time.sleep(_POLL_INTERVAL_S)
    launch.forget(_ALONE_SUFFIX)
    return wanted


def _note_meeting(launch: Launch) -> None:
    """Leave a refusal for the case that this process's group cannot be made."""
    if launch.num_ranks > 1 and not launch.others_wanted():
        _leave_refusal(launch, _MEETING_SUFFIX)


def _leave_refusal(launch: Launch, suffix: str) -> UsageError:
    text = {
        "asked": f"cannot run {sys.argv[0]} on {launch.num_ranks} ranks",
        "found": "a process group of processes that it starts itself",
        "why": f"each of the {launch.num_ranks} would start ranks of its own",
        "attempt": "--nproc 1, which records the ranks that it starts",
    }
    with whole(launch.path(suffix)) as unfinished:
        unfinished.write_text(json.dumps(text), encoding="utf-8")
    return UsageError(**text)


def close_gloo() -> None:
    """Destroy a gloo group that the script has left: now and then its threads abort the exit."""
    distributed = sys.modules.get("torch.distributed")
    if distributed and distributed.is_initialized() and distributed.get_backend() == "gloo":
        distributed.destroy_process_group()


def _starter(args: Any) -> str:
    """A command that may start ranks, in short; empty for others, and for torch's own helpers."""
    words = [args] if isinstance(args, (str, bytes, os.PathLike)) else list(args)
    text = " ".join(os.fsdecode(word) for word in words)
    name = os.path.basename((text.split() or [""])[0])
    if not name.startswith(_STARTERS) or _HELPER in text:
        return ""
    return text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]}..."


def _prepare(folder: Path, on_group: Callable[[], None], on_meeting: Callable[[], None]) -> None:
    """Once torch's process groups are there: keep them to loopback, and tell of the first one."""
    meet_on_loopback(folder, on_meeting)
    c10d: Any = sys.modules[_C10D]
    update = c10d._update_default_pg
    update = getattr(update, "before", update)  # a forked process has its parent's
    pid = os.getpid()

    def told_update(group: Any) -> None:
        update(group)
        if group is not None and os.getpid() == pid:
            c10d._update_default_pg = update
            on_group()

    told_update.before = update  # pyright: ignore[reportFunctionMemberAccess]
    c10d._update_default_pg = told_update


def _when_loaded(prepare: Callable[[], None]) -> None:
    """Call `prepare` when torch's process groups are imported: now, if they are already."""
    if _C10D in sys.modules:
        prepare()
    else:
        sys.meta_path.insert(0, _Finder(prepare))


class _Finder(MetaPathFinder):
    """Finds the module of process groups as others do, and calls a function when it has run."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own specification, with a loader that calls the function."""
        if fullname != _C10D:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = self._executing(loader.exec_module)
        return spec

    def _executing(self, execute: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        def execute_and_tell(module: ModuleType) -> None:
            execute(module)
            self._then()

        return execute_and_tell
