"""Launcher of ranks of a script or a function on this machine, each recorded.

    result = run_script("train.py", ["--steps", "3"], nproc=4, spool_folder=folder)
    merge_spools(folder, "run.json")

Each rank is a process that runs `bootstrap`, which records into the folder. It gets the variables
that torchrun sets, and a loopback address at which rank 0 hosts the store of the process group.
When a rank fails, the others are stopped. The result names the rank that failed first, with its
traceback, and the folder holds everything recorded until then. Ranks do not outlive the process
that started them. `commtrace run` starts scripts, `commtrace.launch` functions; the output of ranks
of a function is labelled, and they have a watchdog.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from commtrace.atomic_write import make_folder
from commtrace.errors import LaunchError, UsageError
from commtrace.exit_codes import SIGNAL_EXIT_CODE
from commtrace.launched_rank import RUN_ID_PREFIX
from commtrace.launching.bootstrap import (
    BACKEND_VARIABLE,
    CALL_OPTION,
    PARCEL_NAME,
    SPOOLS_VARIABLE,
    WATCHED_VARIABLE,
    output_path,
    read_failures,
)
from commtrace.launching.child_ranks import notes_of, refusal
from commtrace.launching.loopback import ADDRESS, INTERFACE_VARIABLES, interface, reserved_port
from commtrace.launching.main_program import MODULE_OPTION, is_own
from commtrace.launching.pickling import results, write_own
from commtrace.launching.processes import Ended, run_ranks
from commtrace.launching.watchdog import DumpedStack, TimeoutReport, watchdog
from commtrace.process_options import AUTO_VARIABLE, ProcessOptions
from commtrace.tracefile.beside_spool import leave_exit_code, leave_stacks
from commtrace.tracefile.spool import SPOOL_SUFFIX
from commtrace.tracefile.spool_reading import pid_of_spool
from commtrace.units import text_of_ranks

_TIME_TO_END_NS = 15_000_000_000
_DEFAULTS = ProcessOptions()
_STOPPING_SIGNALS = (signal.SIGTERM, signal.SIGABRT)


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """Outcome of a run.

    Attributes:
        exit_code: code of the first rank that failed, as a shell reports it: 128 + n for signal n.
        failed_rank: None if all ranks succeeded.
        traceback: empty if the rank did not fail by an exception.
        stuck: stacks of the ranks that the watchdog ended.
        output: output of each rank, if a function ran.
    """

    exit_code: int
    spool_folder: Path
    failed_rank: int | None = None
    traceback: str = ""
    stuck: Mapping[int, DumpedStack] = field(default_factory=dict)
    output: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if every rank succeeded."""
        return self.exit_code == 0


def run_script(
    script: Path | str,
    args: Sequence[str] = (),
    *,
    nproc: int,
    spool_folder: Path | str,
    options: ProcessOptions = _DEFAULTS,
    is_module: bool = False,
    timeout_s: float | None = None,
) -> LaunchResult:
    """Run `script` on `nproc` ranks of this machine and record each into `spool_folder`.

    Call it from the main thread, since it handles the signals that ask this process to end. The
    ranks' output goes to this process's output.

    Args:
        script: path of the script, or name of a module.
        args: its arguments.
        nproc: number of ranks.
        spool_folder: the folder for spools.
        options: how each rank is recorded.
        is_module: `script` is the name of a module, as after `python -m`.
        timeout_s: end all ranks if any runs longer than this.

    Raises:
        UsageError: there is no such script, no ranks were requested, or each of several processes
            would start ranks of its own.
    """
    folder = Path(spool_folder)
    check_program(script, is_module=is_module)
    check_ranks(script, nproc)
    variables = _variables(folder, nproc, options)
    if timeout_s is not None:
        variables[WATCHED_VARIABLE] = "1"
    arguments = [*([MODULE_OPTION] if is_module else []), str(script), *args]
    make_folder(notes_of(folder))
    with watchdog(notes_of(folder), timeout_s) as timeout:
        return _launch(arguments, nproc, folder, variables, timeout)


def run_function(
    parcel: bytes,
    name: str,
    *,
    nproc: int,
    spool_folder: Path | str,
    options: ProcessOptions = _DEFAULTS,
    backend: str | None = "gloo",
    timeout_s: float | None = None,
) -> LaunchResult:
    """Call the function that `pickling.pack` has packed on `nproc` ranks, each recorded.

    Their results are stored for `results_of`. Their output is printed here while they run, prefixed
    with the rank.

    Args:
        parcel: the packed call.
        name: name of the function in messages.
        nproc: number of ranks.
        spool_folder: the folder for spools and results.
        options: how each rank is recorded.
        backend: backend of each rank's process group, None for none.
        timeout_s: end all ranks if any runs longer than this.
    """
    folder = Path(spool_folder)
    notes = notes_of(folder)
    make_folder(notes)
    write_own(notes / PARCEL_NAME, parcel)
    variables = _variables(folder, nproc, options)
    variables["PYTHONPATH"] = _with_this_package(os.environ.get("PYTHONPATH", ""))
    variables[BACKEND_VARIABLE] = backend or ""
    with _printed(notes, nproc), watchdog(notes, timeout_s) as timeout:
        result = _launch([CALL_OPTION, name], nproc, folder, variables, timeout)
    return replace(result, output=_output(notes, nproc))


def results_of(result: LaunchResult, nproc: int) -> tuple[Any, ...]:
    """Return what each rank of a function returned; see `pickling.results`."""
    return results(notes_of(result.spool_folder), nproc)


def _variables(folder: Path, nproc: int, options: ProcessOptions) -> dict[str, str]:
    # Without the variable that makes processes record themselves.
    variables = {SPOOLS_VARIABLE: str(folder.absolute()), AUTO_VARIABLE: "", **options.variables()}
    if nproc > 1:
        # As torchrun does, since the ranks share the cores of this machine.
        variables["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
    if loopback := interface():
        variables |= dict.fromkeys(INTERFACE_VARIABLES - os.environ.keys(), loopback)
    return variables


def _environment(rank: int, nproc: int, port: int) -> dict[str, str]:
    """Return the variables that torchrun would set for a rank on a single host."""
    in_group = {"RANK": rank, "WORLD_SIZE": nproc}
    return {
        **{f"{of}{name}": str(n) for name, n in in_group.items() for of in ("", "LOCAL_", "ROLE_")},
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "MASTER_ADDR": ADDRESS,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": f"{RUN_ID_PREFIX}{os.getpid()}",
        # There is no agent: rank 0 hosts the store.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }


def check_ranks(script: Path | str, nproc: int) -> None:
    """Check a number of ranks.

    Raises:
        UsageError: it is not positive.
    """
    if nproc < 1:
        raise UsageError(
            f"cannot run {script} on {nproc} ranks",
            why="a run needs at least one rank",
            attempt="--nproc 1 or more",
        )


def check_program(script: Path | str, *, is_module: bool) -> None:
    """Check that a script exists; a module is searched for by the rank.

    Raises:
        UsageError: there is no such script, or folder with `__main__.py`.
    """
    path = Path(script)
    if is_module or path.is_file() or (path / "__main__.py").is_file():
        return
    found = "a folder without __main__.py" if path.is_dir() else "no such file"
    raise UsageError(f"cannot run {script}", found=found, why="it must be a Python script")


def _with_this_package(paths: str) -> str:
    """Append the path of this package to PYTHONPATH entries, so that ranks find it."""
    own = str(Path(__file__).parents[2])
    return os.pathsep.join(dict.fromkeys(filter(None, [*paths.split(os.pathsep), own])))


def _launch(
    arguments: list[str],
    nproc: int,
    spool_folder: Path,
    variables: Mapping[str, str],
    timeout: TimeoutReport,
) -> LaunchResult:
    spool_folder = spool_folder.absolute()
    command = [sys.executable, "-m", "commtrace.launching.bootstrap", *arguments]
    try:
        with reserved_port() as port:
            ended = run_ranks(
                command,
                [os.environ | variables | _environment(rank, nproc, port) for rank in range(nproc)],
                is_over=lambda: (
                    refusal(spool_folder, is_over=False) is not None
                    or has_failed(notes_of(spool_folder))
                ),
                on_wait=_say_waiting,
            )
    except OSError as error:
        raise LaunchError(
            "cannot start the ranks", found=f"{type(error).__name__}: {error}"
        ) from error
    _leave_beside_spools(ended, spool_folder, timeout)
    if ended.signal:
        return LaunchResult(SIGNAL_EXIT_CODE + ended.signal, spool_folder)
    if any(ended.exit_codes.values()):
        if error := refusal(spool_folder, is_over=True):
            raise error
        return _failure(ended, spool_folder, timeout)
    return LaunchResult(0, spool_folder)


def _say_waiting(number: int, ranks: Sequence[int], most_s: float) -> None:
    if number == signal.SIGINT:
        reason, again = "interrupted", "Ctrl-C again kills them"
    elif number:
        name = signal.Signals(number).name
        reason, again = f"asked to end by {name}", f"{name} again kills them"
    else:
        reason, again = "another rank failed", "Ctrl-C kills them"
    text = f"{reason}: waiting up to {most_s:g} s for {text_of_ranks(ranks)} to end; {again}"
    print(text, file=sys.stderr, flush=True)


def _leave_beside_spools(ended: Ended, spool_folder: Path, timeout: TimeoutReport) -> None:
    """Leave how ranks ended, unless they were ended, and the stacks of those that timed out."""
    codes = {ended.pids[rank]: code for rank, code in ended.own.items()}
    for spool in sorted(spool_folder.glob(f"*{SPOOL_SUFFIX}")):
        pid = pid_of_spool(spool)
        if pid in timeout.texts:
            leave_stacks(spool, timeout.texts[pid], timeout.time_ns)
        elif pid in codes:
            leave_exit_code(spool, codes[pid])


def has_failed(folder: Path) -> bool:
    """Return whether a rank has noted a failure for so long that its threads may never end."""
    now_ns = time.time_ns()
    return any(now_ns - each.time_ns > _TIME_TO_END_NS for each in read_failures(folder))


@contextlib.contextmanager
def _printed(folder: Path, nproc: int) -> Iterator[None]:
    """Print the ranks' output during the body, line by line, prefixed with the rank."""
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
    """Return the output of each rank: its standard output, then its standard error."""
    paths = [
        [output_path(folder, rank, name) for name in ("stdout", "stderr")] for rank in range(nproc)
    ]
    return tuple(
        "".join(path.read_text("utf-8", "replace") for path in of_rank if path.exists())
        for of_rank in paths
    )


def _failure(ended: Ended, spool_folder: Path, timeout: TimeoutReport) -> LaunchResult:
    """Return the result of the rank that failed first.

    Others fail because of it, and the launcher stops the rest. A rank that died without a note has
    left no time; it precedes those that raised, since a crash is what makes peers raise.
    """
    left = read_failures(notes_of(spool_folder))
    # A rank that failed before the timeout is the reason that the others hung.
    if timeout.stacks and not (left and left[0].time_ns < timeout.time_ns):
        stuck = {
            rank: [place for place in stack if not is_own(place[0]) and not _imports(place[0])]
            for rank, stack in timeout.stacks.items()
        }
        return LaunchResult(1, spool_folder, min(stuck), stuck=stuck)
    explained = {failure.rank for failure in left} | set(timeout.stacks)
    failed = {rank: code for rank, code in ended.exit_codes.items() if code}
    for rank, code in failed.items():
        if rank not in explained and -code not in _STOPPING_SIGNALS:
            return LaunchResult(_shell_code(code), spool_folder, rank)
    if left:
        return LaunchResult(left[0].exit_code, spool_folder, left[0].rank, left[0].traceback)
    rank = min(ended.failed_first or failed)
    return LaunchResult(_shell_code(failed[rank]), spool_folder, rank)


def _imports(filename: str) -> bool:
    """Return whether a file is of Python's imports, which it hides in tracebacks, too."""
    return filename.startswith("<frozen importlib")


def _shell_code(exit_code: int) -> int:
    """Return the exit code as a shell reports it: 128 + n for a process killed by signal n."""
    return exit_code if exit_code > 0 else SIGNAL_EXIT_CODE - exit_code
