"""Runs recorded to a file whose spools are not merged yet: the spools are read instead."""

from __future__ import annotations

from pathlib import Path

from commtrace.errors import EmptyTraceError, TraceError
from commtrace.tracefile import (
    RUNNING_RANKS,
    SPOOL_SUFFIX,
    Trace,
    read_trace,
    spools_beside,
)
from commtrace.units import text_of_ranks
from commtrace_cli.terminal import say


def read_run(path: Path) -> Trace:
    """Read the trace at `path`, or the spools of a run that is recorded to `path`.

    Prints a note if the run is still running, or ended before its spools were merged. Nothing is
    written, and no file stays open.

    Raises:
        TraceError: `path` is no trace, and has no spools.
    """
    trace, spools = _read(path), spools_beside(path)
    note = ""
    if running := trace.run.get(RUNNING_RANKS):
        note = f"{path} is still being recorded: {text_of_ranks(running)} had written this so far"
    elif trace.path == spools:
        note = f"{path} was not merged when its recording ended: the spools in {spools} were read"
    say(f"note: {note}" if note else "", always=True)
    return trace


def _read(path: Path) -> Trace:
    spools = spools_beside(path)
    if path.is_dir() or not spools.is_dir():
        return read_trace(path)
    before = _stamp(path)
    if not before and not any(spools.glob(f"*{SPOOL_SUFFIX}")):
        raise EmptyTraceError(
            f"cannot read the trace {path}",
            found="a run in which no rank has begun to record",
            why="ranks begin to record once torch is loaded",
            attempt=f"again in some seconds, or `commtrace watch {path}`, which waits",
        )
    try:
        trace = read_trace(spools)
    except TraceError:
        if _stamp(path) == before and not before:
            raise
        return read_trace(path)
    # Spools are removed once the file is written, possibly while they were read here. The file may
    # also be of an earlier run, or the spools may be of ranks that the merge left out.
    if _stamp(path) != before or (before and _start_ns(trace) < before):
        return read_trace(path)
    return trace


def _stamp(path: Path) -> int:
    """Return the time of the last change of a file; 0 if there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _start_ns(trace: Trace) -> int:
    return min((start for start in trace.tables["ranks"]["start_ns"] if start >= 0), default=0)
