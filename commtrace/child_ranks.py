"""Ranks that a launched script starts by itself, with `multiprocessing` or torch's `spawn`.

A process that the script starts becomes a rank when it makes a default process group: from then on
it is recorded, beside the process that has started it. One that makes none, such as a worker of a
DataLoader, is left alone, and so is one whose parent is a rank already: its group serves something
else, a checkpoint for instance. Where the launcher has started several processes, each of which
would start ranks of its own, the run is refused. Programs that the script starts are noted.
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

from commtrace.errors import UsageError
from commtrace.loopback import meet_on_loopback
from commtrace.processes import watch_parent
from commtrace.writing import opener, whole

_C10D = "torch.distributed.distributed_c10d"
_GROUP_SUFFIX = ".group"
_PROGRAMS_NAME = "programs"
_REFUSAL_NAME = "refused"
_STARTERS = ("python", "pypy", "torchrun", "accelerate", "deepspeed", "horovodrun", "mpi", "ray")
_HELPER = "compile_worker"  # torch starts it by itself
_SHOWN_LETTERS = 80
_TIME_TO_BE_ENDED_S = 60.0


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

    @property
    def serves_rank(self) -> bool:
        """Whether one of the processes above it has a default process group."""
        return any(self._group_of(pid).exists() for pid in self.pids[:-1])

    def note_group(self) -> None:
        """Leave word that it has one itself."""
        self._group_of(self.pids[-1]).touch(mode=0o600)

    def note_program(self, text: str) -> None:
        """Leave word of a program that it starts."""
        with open(self.folder / _PROGRAMS_NAME, "a", encoding="utf-8", opener=opener) as file:
            file.write(f"{text}\n")

    def _group_of(self, pid: int) -> Path:
        return self.folder / f"{pid}{_GROUP_SUFFIX}"


def num_with_group(folder: Path) -> int:
    """How many processes that could be recorded have made a default process group."""
    return len(list(folder.glob(f"*{_GROUP_SUFFIX}")))


def programs(folder: Path) -> list[str]:
    """The programs that processes of a launch have started and that may have had ranks."""
    with contextlib.suppress(FileNotFoundError):
        lines = (folder / _PROGRAMS_NAME).read_text(encoding="utf-8").splitlines()
        return list(dict.fromkeys(lines))
    return []


def refusal(folder: Path) -> UsageError | None:
    """The error that a process has left which would have been a rank of its own."""
    with contextlib.suppress(OSError):
        return UsageError(**json.loads((folder / _REFUSAL_NAME).read_text(encoding="utf-8")))
    return None


def watch_children(launch: Launch) -> None:
    """See to the processes that this one, which is to be recorded already, starts from now on."""
    _watch_starts(launch)
    _when_loaded(lambda: _prepare(launch.folder, launch.note_group))


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
            _when_loaded(lambda: _prepare(launch.folder, lambda: _begin_rank(launch, stack)))
            run(self.process)


def _begin_rank(launch: Launch, stack: contextlib.ExitStack) -> None:
    """Record this process until the end of `stack`, where it is a rank of the run.

    Where it can be none it waits to be ended by the launcher, and raises UsageError if it isn't.
    """
    if launch.serves_rank:
        return
    if launch.num_ranks > 1:
        error = _leave_refusal(launch)
        time.sleep(_TIME_TO_BE_ENDED_S)
        raise error
    from commtrace.session import record_spawned

    launch.note_group()
    watch_parent()
    stack.callback(close_gloo)
    stack.enter_context(record_spawned(launch.folder, launch.detail, stacks=launch.stacks))


def _leave_refusal(launch: Launch) -> UsageError:
    text = {
        "asked": f"cannot run {sys.argv[0]} on {launch.num_ranks} ranks",
        "found": "a process group of processes that it starts itself",
        "why": f"each of the {launch.num_ranks} would start ranks of its own",
        "attempt": "--nproc 1, which records the ranks that it starts",
    }
    with whole(launch.folder / _REFUSAL_NAME) as unfinished:
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


def _prepare(folder: Path, on_group: Callable[[], None]) -> None:
    """Once torch's process groups are there: keep them to loopback, and tell of the first one."""
    meet_on_loopback(folder)
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
            spec.loader.exec_module = self._executing(spec.loader.exec_module)
        return spec

    def _executing(self, execute: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
        def execute_and_tell(module: ModuleType) -> None:
            execute(module)
            self._then()

        return execute_and_tell
