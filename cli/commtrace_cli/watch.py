"""`commtrace watch`: a run while it runs, and an alarm when it hangs."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from commtrace.errors import UsageError
from commtrace.tracefile.run_folder import SPOOLS_SUFFIX, spools_beside
from commtrace.units import text_of_ranks
from commtrace_cli.alarms import Alarms, alarms_of
from commtrace_cli.options import inputs, watching
from commtrace_cli.parting import print_parting_of_growing
from commtrace_cli.selecting import ranks_of
from commtrace_cli.terminal import Text, data_console, is_terminal, say, write

if TYPE_CHECKING:
    from commtrace.live import Watch
    from commtrace.live.observe import Observer
    from commtrace.live.snapshot import LiveProblem, Snapshot

EXAMPLE = """
Examples:

- `commtrace watch RUN.comm`
- `commtrace watch RUN.comm --serve`
- `commtrace watch RUN.comm --metrics 9464`
- `commtrace watch RUN.comm --once`
- `commtrace watch RUN.comm --on-hang 60s --dump all --exec "scancel $SLURM_JOB_ID"`
- `commtrace watch RUN.comm --dump 3`
- `commtrace watch RUN.comm --json | jq .steps.per_s`

Exit codes: `0` the run has ended, or was shown `--once`; `1` it is over, and ranks died; `2`
a usage error; `3` there is no recording to watch, or no longer; `4` a hang (`--on-hang`), `5` a
straggler (`--on-straggler`), `6` a mismatch (`--on-mismatch`); `7` no rank answered `--dump`;
`130` stopped by Ctrl-C.
"""

DIED = 1
HANG, STRAGGLER, MISMATCH, UNANSWERED = 4, 5, 6, 7
STOPPED = 130
_PARTING = ("hang", "mismatch")
"""Problems before which ranks have parted."""
CODES = {"hang": HANG, "straggler": STRAGGLER, "mismatch": MISMATCH, "died": DIED}
"""Exit code of each problem at which watching ends."""


def watch(
    run: inputs.GrowingRun,
    port_of_page: watching.PortOfPage = None,
    interval: watching.Interval = 1.0,
    once: watching.Once = False,
    on_hang: watching.OnHang = None,
    on_straggler: watching.OnStraggler = None,
    on_mismatch: watching.OnMismatch = False,
    command: watching.Exec = None,
    dump: watching.DumpRanks = None,
    serve: watching.Serve = False,
    port: watching.Port = 0,
    metrics: watching.Metrics = None,
    as_json: watching.AsJsonLines = False,
) -> None:
    """Show what each rank of a running program is in, who waits for whom, and since when.

    Reads the growing spools of a run that is being recorded into a folder RUN.comm, or of a file
    run.json. Nothing runs on the nodes but the recording, and the program does not notice. Beside
    the state of each rank, it shows the rate of steps, blocked time, bytes by kind, stragglers, and
    ranks that died or whose node stopped writing.

    With `--on-hang 60s`, it ends with exit code 4 once a rank has been in a call for that long, and
    says who is missing where, in what the others wait, and where the ranks parted before; `--exec`
    runs a command then, which finds the problem in COMMTRACE_PROBLEM, COMMTRACE_RANKS and
    COMMTRACE_TEXT.

    `--dump 3` asks rank 3 for the Python stacks of all its threads and its calls in flight, prints
    them and exits; with an alarm, it does so when the alarm goes off. A rank answers even while its
    program hangs in C++. `kill -USR2 PID` on its node does the same without `watch`.
    """
    alarms = alarms_of(on_hang, on_straggler, on_mismatch)
    if command is not None and not alarms.problems:
        raise UsageError(
            "cannot run a command without an alarm",
            found=f"--exec {command}",
            why="the command is run when a problem is found",
            attempt="--on-hang 60s, --on-straggler 20% or --on-mismatch with it",
        )
    if port_of_page is not None and not serve:
        raise UsageError(
            f"unexpected argument {port_of_page}",
            found="a number without --serve",
            why="only the page of a run takes a port",
            attempt=f"--serve --port {port_of_page}, or --metrics {port_of_page}",
        )
    folder = folder_of(run)
    asked = None if dump in (None, "all") else ranks_of(dump, "--dump")
    _require_run(folder, may_begin=not once and (dump is None or bool(alarms.problems)))
    if dump is not None and not alarms.problems:
        _dump(folder, asked)
        return
    observer = _observer(folder, alarms)
    show = _shown_live if is_terminal(sys.stdout) else _shown_as_lines
    show = _shown_as_json if as_json else _shown_once if once else show
    try:
        with (
            _served(folder, port_of_page or port) if serve else nullcontext(_ignore) as page,
            nullcontext(_ignore) if metrics is None else _scraped(folder, metrics) as metered,
            show() as view,
        ):
            problem = _follow(observer, alarms, interval, (page, metered, view), once=once)
    except KeyboardInterrupt:
        raise typer.Exit(STOPPED) from None
    if problem is None:
        return
    _report(problem)
    if problem.problem in _PARTING:
        print_parting_of_growing(data_console(), folder, problem.ranks)
    if dump is not None and not _print_dumps(observer, folder, asked):
        say("note: no rank answered --dump", always=True)
    if command is not None:
        _execute(command, problem)
    raise typer.Exit(CODES[problem.problem])


def folder_of(run: Path) -> Path:
    """Return the folder with the spools of a run that is recorded into a folder or a file."""
    spools = spools_beside(run)
    if run.is_dir() or run.suffix != ".json":
        return run
    return spools if spools.is_dir() or not run.exists() else run


def _observer(folder: Path, alarms: Alarms) -> Observer:
    from commtrace.live import HANG_S, STRAGGLER_SHARE, Observer, Watch

    return Observer(
        Watch(folder),
        hang_s=alarms.hang_s or HANG_S,
        straggler_share=alarms.straggler_share or STRAGGLER_SHARE,
    )


def _ended_by_merging(snapshot: Snapshot, watch: Watch) -> Snapshot:
    """Return the end of a run whose folder of spools has been merged, or `snapshot`.

    Raises:
        NotATraceError: the folder has vanished otherwise.
    """
    from commtrace.errors import NotATraceError
    from commtrace.live.life import GONE
    from commtrace.live.merged import when_merged

    # Spools of ranks of earlier runs stay in the folder.
    has_gone = bool(snapshot.ranks) and all(each.life == GONE for each in snapshot.ranks)
    file = watch.folder.with_suffix("")
    is_file = watch.folder.suffix == SPOOLS_SUFFIX and file.is_file()
    if is_file and (snapshot.is_gone or has_gone):
        return when_merged(snapshot, watch, file)
    if not (snapshot.is_gone and snapshot.ranks):
        return snapshot
    raise NotATraceError(
        f"cannot watch {watch.folder} any longer",
        found="the folder has vanished",
        why="it was removed or renamed, or is out of reach, while ranks may still run",
        attempt="`commtrace watch` of the folder, wherever it is now",
    )


Show = Callable[["Snapshot"], None]


def _follow(
    observer: Observer, alarms: Alarms, interval: float, views: Sequence[Show], *, once: bool
) -> LiveProblem | None:
    """Refresh until the run is over or an alarm goes off; return the problem of the alarm."""
    was_running = False
    while True:
        begin = time.monotonic()
        snapshot = _ended_by_merging(observer.refresh(), observer.watch)
        while once and snapshot.bytes_left:  # all that is there, however long that takes
            snapshot = observer.refresh()
        for show in views:
            show(snapshot)
        if not snapshot.bytes_left:
            for problem in snapshot.problems:
                if problem.problem in alarms.problems:
                    return problem
            if once:
                return None
            if snapshot.is_over:
                if not was_running:
                    say(_OVER_BEFORE, always=True)
                return _of_death(snapshot)
            was_running = bool(snapshot.ranks)
        time.sleep(max(interval - (time.monotonic() - begin), 0.02))


_OVER_BEFORE = (
    "note: this run was over before watching began; to watch the next run in this folder, wait for "
    "its first rank, or give it a folder of its own"
)
_MOST_WAITED_S = 30.0
"""Time to wait for a folder that does not exist. One without ranks is waited for without limit."""
_ANSWER_S = 15.0
_POLL_S = 0.25


def _dump(folder: Path, ranks: list[int] | None) -> None:
    """Print the stacks of ranks, without watching."""
    from commtrace.live import Observer, Watch

    if not _print_dumps(Observer(Watch(folder)), folder, ranks):
        say(
            "no rank answered: none of them is running, their Python lock is held (then `kill "
            "-USR2 PID` writes bare stacks into *.stacks), or an older commtrace recorded them",
            always=True,
        )
        raise typer.Exit(UNANSWERED)


def _print_dumps(observer: Observer, folder: Path, ranks: list[int] | None) -> bool:
    """Ask ranks for dumps, print those that come in time, and return whether any came."""
    from commtrace.tracefile.dump_files import request_dumps
    from commtrace_cli.watch_view import stacks

    number = request_dumps(folder, ranks)
    deadline = time.monotonic() + _ANSWER_S
    while True:
        snapshot = observer.refresh()
        waited_for = {
            each.rank
            for each in snapshot.ranks
            if each.life == "running" and (ranks is None or each.rank in ranks)
        }
        answers = [each for each in snapshot.dumps if each.request == number]
        missing = waited_for - {each.rank for each in answers}
        if time.monotonic() > deadline or not (missing or snapshot.bytes_left):
            break
        time.sleep(_POLL_S)
    console = data_console()
    for each in stacks(answers):
        console.print(each, soft_wrap=True)
    if answers and missing:
        say(f"note: no answer from {text_of_ranks(missing)}", always=True)
    return bool(answers)


def _of_death(snapshot: Snapshot) -> LiveProblem | None:
    """Return the problem of ranks that died, if any did in a run that is over."""
    return next((each for each in snapshot.problems if each.problem == "died"), None)


def _ignore(snapshot: Snapshot) -> None:
    """Show nothing."""


@contextmanager
def _served(folder: Path, port: int) -> Iterator[Show]:
    """Serve the page, and print its address."""
    from commtrace.report.live_page import LastMinute, live_state, render_live_page
    from commtrace_cli.serving import serving

    minute = LastMinute()
    with serving(render_live_page(folder), port) as served:
        say(f"watching {folder} at {served.url}", always=True)
        yield lambda snapshot: served.update(live_state(snapshot, minute))


@contextmanager
def _scraped(folder: Path, address: str) -> Iterator[Show]:
    """Serve the metrics, and print their address."""
    from commtrace.live.metrics import RunMetrics
    from commtrace_cli.serving import address_of, serving_metrics

    metrics = RunMetrics()
    with serving_metrics(metrics, *address_of(address)) as url:
        say(f"metrics of {folder} at {url}", always=True)
        yield metrics.update


@contextmanager
def _shown_once() -> Iterator[Show]:
    from commtrace_cli.watch_view import frame

    console = data_console()
    yield lambda snapshot: console.print(frame(snapshot, width=console.width))


@contextmanager
def _shown_as_json() -> Iterator[Show]:
    def show(snapshot: Snapshot) -> None:
        write(json.dumps(_plain(asdict(snapshot)), allow_nan=False) + "\n")
        sys.stdout.flush()

    yield show


@contextmanager
def _shown_as_lines() -> Iterator[Show]:
    """Print a line at each refresh, and each problem and note when it appears."""
    from commtrace.live.wording import line, problem_line

    console = data_console()
    seen: set[tuple[str, tuple[int, ...]]] = set()
    noted: set[str] = set()

    def show(snapshot: Snapshot) -> None:
        for note in snapshot.notes:
            alike = re.sub(r"[\d,.]+", "", note)  # numbers grow
            if alike not in noted:
                console.print(Text(f"note: {note}"), soft_wrap=True)
            noted.add(alike)
        console.print(Text(line(snapshot)), soft_wrap=True)
        for problem in snapshot.problems:
            if (problem.problem, problem.ranks) not in seen:
                console.print(Text(problem_line(problem)), soft_wrap=True)
        seen.clear()
        seen.update((each.problem, each.ranks) for each in snapshot.problems)
        sys.stdout.flush()

    yield show


@contextmanager
def _shown_live() -> Iterator[Show]:
    """Redraw the whole terminal at each refresh, and leave the last state in it."""
    from rich.live import Live

    from commtrace_cli.watch_view import frame

    console = data_console()
    last: list[Snapshot] = []
    try:
        with Live(console=console, screen=True, auto_refresh=False, transient=True) as live:

            def show(snapshot: Snapshot) -> None:
                last[:] = [snapshot]
                live.update(
                    frame(snapshot, width=console.width, height=console.height), refresh=True
                )

            yield show
    finally:
        for snapshot in last:
            console.print(frame(snapshot, width=console.width))


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: unknown numbers become null."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _report(problem: LiveProblem) -> None:
    from commtrace.live.wording import problem_line

    say(problem_line(problem), always=True)


def _execute(command: str, problem: LiveProblem) -> None:
    """Run the user's command in a shell; it finds the problem in its environment."""
    variables = {
        "COMMTRACE_PROBLEM": problem.problem,
        "COMMTRACE_RANKS": ",".join(map(str, problem.ranks)),
        "COMMTRACE_TEXT": problem.text,
    }
    sys.stdout.flush()
    ended = subprocess.run(command, shell=True, env={**os.environ, **variables}, check=False)
    if ended.returncode:
        say(f"note: the command {command!r} ended with code {ended.returncode}", always=True)


def _require_run(folder: Path, *, may_begin: bool) -> None:
    """Refuse a path that is no folder of spools; a run that may begin later needs none yet."""
    from commtrace.errors import EmptyTraceError, NotATraceError
    from commtrace.tracefile.run_folder import require_run_folder
    from commtrace.tracefile.spool import SPOOL_SUFFIX

    summary = f"cannot watch {folder}"
    if folder.exists() and not folder.is_dir():
        raise NotATraceError(
            summary,
            found="a file",
            why="a run is watched while it is recorded, in its folder of spools",
            attempt=f"`commtrace summary {folder}` for a run that has ended",
        )
    if folder.is_dir():
        require_run_folder(folder, summary)
        if may_begin or any(folder.glob(f"*{SPOOL_SUFFIX}")):
            return
        raise EmptyTraceError(
            summary,
            found=f"a folder without a *{SPOOL_SUFFIX} file",
            why="no rank has begun to record there",
            attempt="without --once, to wait for the first rank",
        )
    parent = folder.absolute().parent
    if not may_begin or not parent.is_dir():
        raise NotATraceError(
            summary,
            found="no such folder" if parent.is_dir() else f"no folder {parent}",
            why="a run is recorded into a folder, such as RUN.comm",
            attempt="the folder given to `commtrace record -o`, `commtrace run -o` or COMMTRACE",
        )
    say(f"waiting for {folder}", always=True)
    end = time.monotonic() + _MOST_WAITED_S
    while not folder.exists():
        if time.monotonic() > end:
            raise NotATraceError(
                summary,
                found=f"no such folder within {_MOST_WAITED_S:.0f} s",
                why="a run is recorded into a folder, such as RUN.comm",
                attempt=f"`mkdir {folder}` to wait for a run that begins later, or another path",
            )
        time.sleep(_POLL_S)
