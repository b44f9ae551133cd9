"""Loading of traces by path, for the commands that show them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from commtrace.settings import Settings, settings_of
from commtrace.tracefile import Trace, open_run, require_events
from commtrace_cli.growing import read_run
from commtrace_cli.terminal import Text, data_console, finish, say, working

if TYPE_CHECKING:
    from commtrace.analyze import Frames
    from commtrace.tracefile.dataset import Dataset
    from commtrace.workers import JobRunner


def load_run(
    path: Path,
    workers: int | None = None,
    dask: str | None = None,
    *,
    needs_events: bool = False,
) -> Frames:
    """Load the tables of the trace at `path`.

    Args:
        path: The trace.
        workers: Number of processes for a run that is read in parts; by default one per core.
        dask: Address of the scheduler of a Dask cluster that reads it in parts.
        needs_events: A run is refused if it has no call and no operator to draw or to export; by
            default only if it was interrupted, too, so that it says nothing about the run.

    Raises:
        UsageError: The cluster cannot be used, or the run has no dataset.
        TraceError: it is not a trace, or is empty.
    """
    settings = settings_of()
    if dask is not None:
        from commtrace.analyze.stored import dask_workers

        with working(f"connecting to {dask}"):
            runner = dask_workers(dask)
            return _loaded(open_run(path, in_parts=True), settings, runner)
    with working(f"reading {path}"):
        run = open_run(path, read=partial(_read, needs_events=needs_events))
        return _loaded(run, settings, None if workers is None else _processes(workers))


def _read(path: Path, *, needs_events: bool) -> Trace:
    trace = read_run(path)
    is_whole = trace.num_rows("ranks") and not trace.run.get("torn_ranks")
    if needs_events or not is_whole:
        require_events(trace)
    return trace


def _processes(num: int) -> JobRunner:
    from commtrace.workers import Workers

    return Workers("analyse the run", num)


def _loaded(run: Trace | Dataset, settings: Settings, runner: JobRunner | None) -> Frames:
    from commtrace.analyze import load  # imported late, since it takes longer than refusing

    return load(run, settings, runner)


def say_replayed(*runs: Frames) -> None:
    """Print of each run that is replayed that it is; for commands that print no notices."""
    from commtrace.analyze.notices import replayed_note

    for frames in runs:
        say(f"note: {note}" if (note := replayed_note(frames)) else "", always=True)


def is_silent(frames: Frames, trace: Path) -> bool:
    """Return whether a run has no communication, and if so print that in place of tables."""
    if frames.num_calls:
        return False
    from commtrace.analyze import notices_of
    from commtrace.analyze.notices import EVERYTHING

    console = data_console()
    console.print(Text(str(frames.run.get("command") or trace), style="bold"))
    for notice in notices_of(frames):
        if EVERYTHING in notice.limits:
            console.print(Text(notice.text))
    operators = ["commtrace", "dump", trace, "ops"]
    finish([], then=operators if len(frames.ops) else ["commtrace", "info", trace])
    return True
