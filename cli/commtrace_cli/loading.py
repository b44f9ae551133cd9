"""Loading of traces by path, for the commands that show them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from commtrace.settings import settings_of
from commtrace.tracefile import dataset_at
from commtrace_cli.growing import read_run
from commtrace_cli.terminal import Text, data_console, finish, working

if TYPE_CHECKING:
    from commtrace.analyze import Frames


def load_run(path: Path, workers: int | None = None, dask: str | None = None) -> Frames:
    """Load the tables of the trace at `path`, even without any communication.

    Args:
        path: The trace.
        workers: Number of processes for a run that is read in parts; by default one per core.
        dask: Address of the scheduler of a Dask cluster that reads it in parts.

    Raises:
        UsageError: The cluster cannot be used, or the run has no dataset.
        TraceError: it is not a trace, or is empty and was interrupted, so that it says nothing
            about the run.
    """
    settings = settings_of()
    if dask is not None:
        from commtrace.analyze.opening import in_parts
        from commtrace.analyze.stored import dask_workers

        with working(f"connecting to {dask}"):
            return in_parts(path, settings, dask_workers(dask))
    return _stored(path, workers) or _load(path, is_empty_allowed=True)


def load_events(path: Path) -> Frames:
    """Load the tables of the trace at `path`, which must hold events to draw or to export.

    Raises:
        TraceError: it is not a trace, or holds no call and no operator.
    """
    return _stored(path) or _load(path, is_empty_allowed=False)


def _stored(path: Path, workers: int | None = None) -> Frames | None:
    """Return the run to be read in parts; None if it fits into memory."""
    if dataset_at(path) is None:
        return None
    from commtrace.analyze.opening import stored_run
    from commtrace.workers import Workers

    runner = None if workers is None else Workers("analyse the run", workers)
    return stored_run(path, settings_of(), runner)


def _load(path: Path, *, is_empty_allowed: bool) -> Frames:
    settings = settings_of()
    with working(f"reading {path}"):
        from commtrace.tracefile import require_events

        trace = read_run(path)
        is_whole = trace.num_rows("ranks") and not trace.run.get("torn_ranks")
        if not (is_empty_allowed and is_whole):
            require_events(trace)
        from commtrace.analyze import load  # imported late, since it takes longer than refusing

        return load(trace, settings)


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
