"""Recording of programs that call nothing of commtrace, requested by the variable COMMTRACE.

    COMMTRACE=RUN.comm torchrun --nproc-per-node 4 train.py

`auto_start`, which `auto.pth` imports where the variable is set, makes the variable absolute and
imports this module when the program loads torch. A process is recorded from the moment at which it
has a default process group: launchers, data loaders and tools, which have none, leave nothing.
Processes that a recorded rank
starts are recorded if they are further ranks of its world. If recording is impossible, that is
written to standard error and the program runs as it would without.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from commtrace.errors import CommtraceError, UsageError
from commtrace.escaping import visible
from commtrace.launching.default_group import (
    call_for_default_group,
    is_c10d_loaded,
    when_c10d_is_loaded,
)
from commtrace.process_options import AUTO_VARIABLE, RUN_SUFFIX, options_of

if TYPE_CHECKING:
    from commtrace.session import Recording

_RANK_VARIABLE = "COMMTRACE_RANK"
_recordings: dict[int, Recording] = {}
"""The recording of this process, by its id: a forked process has none."""


def begin(folder: Path) -> None:
    """Record this process into the folder of a run until `end`; if that fails, say so."""
    from multiprocessing import util

    from commtrace.session import record_process
    from commtrace.tracefile.destinations import RunFolder

    store = RunFolder(folder)
    try:
        recording = record_process(store, options_of(os.environ))
        recording.__enter__()
    except CommtraceError as error:
        _say(f"this process is not recorded: {error}")
        return
    _recordings[os.getpid()] = recording
    # Processes of multiprocessing end without the exit handlers of the interpreter.
    util.Finalize(None, end, exitpriority=1)
    if store.num_earlier and recording.rank == 0:
        _say(
            f"{folder} has an earlier recording of this rank. It is kept, and the new recording "
            "added; readers take the latest run"
        )


def end() -> None:
    """End the recording of this process, if any."""
    recording = _recordings.pop(os.getpid(), None)
    if recording is not None and recording.is_on:
        from commtrace.recorder import HOST_EVENTS

        HOST_EVENTS.endings.leaving()
        recording.__exit__(None)


def _say(text: str) -> None:
    sys.stderr.write("commtrace: " + visible(text, keep="\n") + "\n")


def _watch(folder: Path) -> None:
    """Record this process and those that it forks once they have a default group."""

    def begin_with_group() -> None:
        import torch.distributed as dist

        rank, num_ranks = dist.get_rank(), dist.get_world_size()
        if os.getpid() not in _recordings and not _serves_a_rank(rank, num_ranks):
            begin(folder)
        os.environ[_RANK_VARIABLE] = f"{rank}/{num_ranks}/{os.getpid()}"

    def watch_group() -> None:
        call_for_default_group(begin_with_group)

    def watch_fork() -> None:
        if is_c10d_loaded():
            watch_group()

    when_c10d_is_loaded(watch_group)
    os.register_at_fork(after_in_child=watch_fork)


def _serves_a_rank(rank: int, num_ranks: int) -> bool:
    """Return whether a recorded rank has started this group for a purpose of its own.

    An example is the process in which each rank writes its checkpoint. A rank started by another
    rank belongs to the same world, under another number.
    """
    of_ancestor = os.environ.get(_RANK_VARIABLE, "").split("/")
    if len(of_ancestor) != 3 or of_ancestor[2] == str(os.getpid()):  # it became another program
        return False
    return of_ancestor[1] != str(num_ranks) or of_ancestor[0] == str(rank)


def _start() -> None:
    text = os.environ.get(AUTO_VARIABLE, "")
    if not text:
        return
    folder = Path(text)
    if folder.suffix != RUN_SUFFIX:
        error = UsageError(
            "this process is not recorded",
            found=f"{AUTO_VARIABLE}={text}",
            why=f"a run is recorded into a folder whose name ends in {RUN_SUFFIX}",
            attempt=f"{AUTO_VARIABLE}=RUN{RUN_SUFFIX}",
        )
        _say(str(error))
        return
    _watch(folder)


_start()
