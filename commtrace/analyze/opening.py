"""Opening of a run by its path: in memory, or in parts if it is too large for that."""

from __future__ import annotations

from pathlib import Path

from commtrace.analyze.frame import Frames, frames_of
from commtrace.settings import DEFAULTS, Settings
from commtrace.tracefile import Trace, dataset_at, read_trace

ROWS_IN_MEMORY = 3_000_000
"""Number of calls, operators and kernels up to which a run is read into memory."""


def load(source: Path | str | Trace | Frames, settings: Settings = DEFAULTS) -> Frames:
    """Return the tables of a trace, given by its path or already read.

    Of a large run with a dataset, the tables `comm`, `ops` and `kernels` are read when they are
    used, and its analyses read them in parts.

    Raises:
        TraceError: The path holds no trace.
    """
    if isinstance(source, Frames):
        return source
    if isinstance(source, Trace):
        return frames_of(source, settings)
    stored = stored_run(Path(source), settings)
    return frames_of(read_trace(source), settings) if stored is None else stored


def stored_run(path: Path, settings: Settings = DEFAULTS) -> Frames | None:
    """Return the run in a folder to be read in parts; None if it fits into memory.

    Raises:
        TraceError: Its dataset is damaged.
    """
    dataset = dataset_at(path)
    if dataset is None:
        return None
    if sum(dataset.num_rows(table) for table in ("comm", "ops", "kernels")) <= ROWS_IN_MEMORY:
        return None
    from commtrace.analyze.stored import StoredRun

    return StoredRun(dataset, settings)
