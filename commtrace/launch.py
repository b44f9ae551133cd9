"""Starts the ranks of a script on this machine, each one recorded: the engine of `commtrace run`.

    result = run_script("train.py", ["--steps", "3"], nproc=4, spool_folder=folder)
    merge_spools(folder, "run.json")

torch's elastic launcher starts the processes and watches them; each runs `commtrace.bootstrap`,
which records the script into the folder. When a rank fails the others are stopped, and the result
names the rank that failed first, with its traceback; what was recorded until then is in the
folder. Ranks do not outlive the process that started them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from commtrace.bootstrap import (
    DETAIL_VARIABLE,
    SPOOLS_VARIABLE,
    STACKS_VARIABLE,
    read_failures,
)
from commtrace.errors import LaunchError, UsageError

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.api import LogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

_MONITOR_INTERVAL_S = 0.1
_SIGNAL_EXIT_CODE = 128
_STOPPING_SIGNALS = (signal.SIGTERM, signal.SIGABRT)


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """How a run ended; `failed_rank` is None and `traceback` empty if all ranks went well.

    `exit_code` is what a shell would report of the rank that failed first: 128 + n for one that
    died of signal n. `traceback` is empty where it did not fail by an exception.
    """

    exit_code: int
    spool_folder: Path
    failed_rank: int | None = None
    traceback: str = ""

    @property
    def ok(self) -> bool:
        """Whether every rank ended well."""
        return self.exit_code == 0


def run_script(
    script: Path | str,
    args: Sequence[str] = (),
    *,
    nproc: int,
    spool_folder: Path | str,
    detail: str = "op",
    stacks: bool = False,
) -> LaunchResult:
    """Run `script` on `nproc` ranks of this machine and record each into `spool_folder`.

    Call it from the main thread: it handles the signals that ask this process to end. Output of
    the ranks goes where this process's does.

    Raises UsageError if there is no such script or no ranks were asked for.
    """
    script, spool_folder = Path(script), Path(spool_folder).absolute()
    _check(script, nproc)
    spool_folder.mkdir(parents=True, exist_ok=True)
    command = ["-m", "commtrace.bootstrap", str(script), *args]
    variables = {SPOOLS_VARIABLE: str(spool_folder), DETAIL_VARIABLE: detail}
    variables[STACKS_VARIABLE] = "1" if stacks else ""
    if nproc > 1:
        variables["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
    with _environment(variables), _quiet_launcher():
        return _launch(command, nproc, spool_folder)


def _check(script: Path, nproc: int) -> None:
    if nproc < 1:
        raise UsageError(
            f"cannot run {script} on {nproc} ranks",
            why="a run has at least one rank",
            attempt="--nproc 1 or more",
        )
    if not script.is_file():
        found = "a folder" if script.is_dir() else "no such file"
        raise UsageError(f"cannot run {script}", found=found, why="it has to be a Python script")


def _launch(command: list[str], nproc: int, spool_folder: Path) -> LaunchResult:
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    with tempfile.TemporaryDirectory(prefix="commtrace-") as logs:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=nproc,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            run_id=f"commtrace-{os.getpid()}",
            max_restarts=0,
            monitor_interval=_MONITOR_INTERVAL_S,
            local_addr="localhost",
            logs_specs=_logs_in(logs),
        )
        try:
            elastic_launch(config, sys.executable)(*command)
        except ChildFailedError as error:
            return _failure(error, spool_folder)
        except SignalException as error:
            return LaunchResult(_SIGNAL_EXIT_CODE + int(error.sigval), spool_folder)
        except (RendezvousError, OSError) as error:
            raise LaunchError(
                "cannot start the ranks",
                found=f"{type(error).__name__}: {error}",
                why="the launcher could not set up its meeting point on localhost",
            ) from error
    return LaunchResult(0, spool_folder)


def _logs_in(folder: str) -> LogsSpecs:
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs

    return DefaultLogsSpecs(log_dir=folder)


def _failure(error: ChildFailedError, spool_folder: Path) -> LaunchResult:
    """The rank that failed first.

    Others fail because of it, and the launcher stops the rest. A rank that died without a word has
    left no time behind; it goes before those that raised, for a crash is what makes peers raise.
    """
    left = read_failures(spool_folder)
    spoke = {failure.rank for failure in left}
    for rank, failure in sorted(error.failures.items()):
        if rank not in spoke and -failure.exitcode not in _STOPPING_SIGNALS:
            return LaunchResult(_shell_code(failure.exitcode), spool_folder, rank)
    if left:
        return LaunchResult(left[0].exit_code, spool_folder, left[0].rank, left[0].traceback)
    rank, failure = error.get_first_failure()
    return LaunchResult(_shell_code(failure.exitcode), spool_folder, rank)


def _shell_code(exit_code: int) -> int:
    """What a shell reports of a process: 128 + n of one that died of signal n."""
    return exit_code if exit_code > 0 else _SIGNAL_EXIT_CODE - exit_code


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables, which the ranks inherit, for the body."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _quiet_launcher() -> Iterator[None]:
    """Keep the launcher's own log to itself: what went wrong is told once, by the result."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
