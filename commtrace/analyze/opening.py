"""Opening of a run by its path: in memory, or in parts if it is too large for that."""

from __future__ import annotations

from pathlib import Path
from weakref import finalize

from commtrace.analyze.frame import Frames, frames_of
from commtrace.errors import UsageError
from commtrace.schema import EVENT_TABLES
from commtrace.settings import DEFAULTS, Settings
from commtrace.tracefile import Trace, dataset_at, read_trace
from commtrace.workers import JobRunner, Workers

ROWS_IN_MEMORY = 3_000_000
"""Number of calls, operators and kernels up to which a run is read into memory."""


def load(
    source: Path | str | Trace | Frames,
    settings: Settings = DEFAULTS,
    workers: JobRunner | None = None,
) -> Frames:
    """Return the tables of a trace, given by its path or already read.

    For a large run with a dataset, the tables `comm`, `ops` and `kernels` are loaded lazily, and
    its analyses read them in parts.

    Args:
        source: The trace.
        settings: Settings of the project in which it is analysed.
        workers: Processes for the parts of a large run; by default, one per core.

    Raises:
        TraceError: The path holds no trace.
    """
    if isinstance(source, Frames):
        return source
    if isinstance(source, Trace):
        return frames_of(source, settings)
    stored = stored_run(Path(source), settings, workers)
    return frames_of(read_trace(source), settings) if stored is None else stored


def stored_run(
    path: Path, settings: Settings = DEFAULTS, workers: JobRunner | None = None
) -> Frames | None:
    """Return the run in a folder to be read in parts; None if it fits into memory.

    Args:
        path: The folder.
        settings: Settings of the project in which it is analysed.
        workers: Processes for its parts; by default, one per core.

    Raises:
        TraceError: Its dataset is damaged.
    """
    dataset = dataset_at(path)
    if dataset is None:
        return None
    if sum(dataset.num_rows(table) for table in EVENT_TABLES) <= ROWS_IN_MEMORY:
        return None
    return in_parts(path, settings, workers)


def in_parts(path: Path, settings: Settings = DEFAULTS, workers: JobRunner | None = None) -> Frames:
    """Return the run in a folder to be read in parts, however small it is.

    Raises:
        UsageError: It has no dataset.
        TraceError: Its dataset is damaged.
    """
    dataset = dataset_at(path)
    if dataset is None:
        raise UsageError(
            f"cannot read {path} in parts",
            found="no dataset that is up to date",
            why="parts are read from the dataset of a run",
            attempt=f"`commtrace merge {path}` prepares it",
        )
    from commtrace.analyze.stored import StoredRun

    if workers is not None:
        return StoredRun(dataset, settings, workers=workers)
    processes = Workers("analyse the run")
    run = StoredRun(dataset, settings, workers=processes)
    finalize(run, processes.close)
    return run
