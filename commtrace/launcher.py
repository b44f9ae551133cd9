"""Starts ranks of a script or a function on this machine, each one recorded.

    result = run_script("train.py", ["--steps", "3"], nproc=4, spool_folder=folder)
    merge_spools(folder, "run.json")

torch's elastic launcher starts the processes and watches them; each runs `commtrace.bootstrap`,
which records into the folder. When a rank fails the others are stopped, and the result names the
rank that failed first, with its traceback; what was recorded until then is in the folder. Ranks do
not outlive the process that started them. `commtrace run` starts scripts, `commtrace.launch`
functions; what ranks of a function print is labelled, and they have a deadline.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commtrace.bootstrap import (
    BACKEND_VARIABLE,
    CALL_OPTION,
    DETAIL_VARIABLE,
    PARCEL_NAME,
    SPOOLS_VARIABLE,
    STACKS_VARIABLE,
    is_own,
    output_path,
    read_failures,
)
from commtrace.deadline import Stack, Verdict, deadline
from commtrace.errors import LaunchError, UsageError

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.api import LogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

_MONITOR_INTERVAL_S = 0.1
_LAST_WORDS_S = 0.4  # what a rank has called is in its spool a quarter of a second later
_SIGNAL_EXIT_CODE = 128
_STOPPING_SIGNALS = (signal.SIGTERM, signal.SIGABRT)
_HANDLED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """How a run ended; `failed_rank` is None and `traceback` empty if all ranks went well.

    `exit_code` is what a shell would report of the rank that failed first: 128 + n for one that
    died of signal n. `traceback` is empty where it did not fail by an exception. `stuck` has where
    each rank stood that the deadline ended, and `output`, of a function, what each rank printed.
    """

    exit_code: int
    spool_folder: Path
    failed_rank: int | None = None
    traceback: str = ""
    stuck: Mapping[int, Stack] = field(default_factory=dict)
    output: tuple[str, ...] = ()

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
    script = Path(script)
    _check(script, nproc)
    variables = _variables(spool_folder, nproc, detail, stacks)
    with tempfile.TemporaryDirectory(prefix="commtrace-") as logs, _environment(variables):
        command = [str(script), *args]
        return _launch(command, nproc, Path(spool_folder), _logs_in(logs), Verdict())


def run_function(
    parcel: bytes,
    name: str,
    *,
    nproc: int,
    spool_folder: Path | str,
    detail: str = "op",
    stacks: bool = False,
    backend: str | None = "gloo",
    timeout_s: float | None = None,
) -> LaunchResult:
    """Call what `shipping.pack` has packed, known as `name`, on `nproc` ranks, each recorded.

    What they return is in `spool_folder` too, for `shipping.results`. What they print is printed
    here while they do, behind the number of the rank. Each has a process group of `backend`, None
    for none. All ranks are ended when one is not done after `timeout_s`.
    """
    folder = Path(spool_folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PARCEL_NAME).write_bytes(parcel)
    variables = _variables(folder, nproc, detail, stacks)
    variables["PYTHONPATH"] = _with_this_package(os.environ.get("PYTHONPATH", ""))
    variables[BACKEND_VARIABLE] = backend or ""
    with (
        tempfile.TemporaryDirectory(prefix="commtrace-") as logs,
        _environment(variables),
        _own_signals(),
        _printed(folder, nproc),
        deadline(folder, timeout_s) as verdict,
    ):
        result = _launch([CALL_OPTION, name], nproc, folder, _logs_in(logs), verdict)
    return replace(result, output=_output(folder, nproc))


def _variables(folder: Path | str, nproc: int, detail: str, stacks: bool) -> dict[str, str]:
    variables = {SPOOLS_VARIABLE: str(Path(folder).absolute()), DETAIL_VARIABLE: detail}
    variables[STACKS_VARIABLE] = "1" if stacks else ""
    if nproc > 1:
        variables["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
    return variables


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


def _with_this_package(paths: str) -> str:
    """The paths, and the one that this package was found in, for ranks to find it too."""
    own = str(Path(__file__).parents[1])
    return os.pathsep.join(dict.fromkeys(filter(None, [*paths.split(os.pathsep), own])))


def _launch(
    arguments: list[str], nproc: int, spool_folder: Path, logs: LogsSpecs, verdict: Verdict
) -> LaunchResult:
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    spool_folder = spool_folder.absolute()
    spool_folder.mkdir(parents=True, exist_ok=True)
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
        logs_specs=logs,
    )
    try:
        with _quiet_launcher(), _last_words():
            elastic_launch(config, sys.executable)("-m", "commtrace.bootstrap", *arguments)
    except ChildFailedError as error:
        return _failure(error, spool_folder, verdict)
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


@contextlib.contextmanager
def _printed(folder: Path, nproc: int) -> Iterator[None]:
    """Print here what ranks print, in the body, line by line behind the number of the rank."""
    from torch.distributed.elastic.multiprocessing.tail_log import TailLog

    labels = {rank: f"[rank {rank}] " for rank in range(nproc)}
    followers = [
        TailLog("rank", {rank: str(output_path(folder, rank, name)) for rank in labels}, to, labels)
        for name, to in (("stdout", sys.stdout), ("stderr", sys.stderr))
    ]
    for follower in followers:
        follower.start()
    try:
        yield
    finally:
        for follower in followers:
            follower.stop()


def _output(folder: Path, nproc: int) -> tuple[str, ...]:
    """What each rank has printed: its standard output, then its errors."""
    paths = [
        [output_path(folder, rank, name) for name in ("stdout", "stderr")] for rank in range(nproc)
    ]
    return tuple(
        "".join(path.read_text("utf-8", "replace") for path in of_rank if path.exists())
        for of_rank in paths
    )


def _failure(error: ChildFailedError, spool_folder: Path, verdict: Verdict) -> LaunchResult:
    """The rank that failed first.

    Others fail because of it, and the launcher stops the rest. A rank that died without a word has
    left no time behind; it goes before those that raised, for a crash is what makes peers raise.
    """
    left = read_failures(spool_folder)
    if verdict.stacks and not (left and left[0].time_ns < verdict.time_ns):
        stuck = {
            rank: [place for place in stack if not is_own(place[0])]
            for rank, stack in verdict.stacks.items()
        }
        return LaunchResult(1, spool_folder, min(stuck), stuck=stuck)
    spoke = {failure.rank for failure in left} | set(verdict.stacks)
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
def _last_words() -> Iterator[None]:
    """When a rank fails, let the others write what they called before they are ended."""
    from torch.distributed.elastic.multiprocessing.api import SubprocessContext

    close = SubprocessContext._close

    def close_later(self: Any, *args: Any, **kwargs: Any) -> None:
        if any(each.proc.poll() is None for each in self.subprocess_handlers.values()):
            time.sleep(_LAST_WORDS_S)
        close(self, *args, **kwargs)

    SubprocessContext._close = close_later
    try:
        yield
    finally:
        SubprocessContext._close = close


@contextlib.contextmanager
def _quiet_launcher() -> Iterator[None]:
    """Keep the launcher's own log to itself: what went wrong is told once, by the result."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Give this process its handlers of signals back, which the launcher replaces."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in _HANDLED_SIGNALS if is_main}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
