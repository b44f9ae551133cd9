"""Opening of a run by its path: in memory, or in parts if it is too large for that."""

from __future__ import annotations

from pathlib import Path
from weakref import finalize

from commtrace.analyze.run.frame import Frames, frames_of
from commtrace.settings import DEFAULTS, Settings
from commtrace.tracefile import Trace, open_run
from commtrace.tracefile.dataset import Dataset
from commtrace.workers import JobRunner, Workers


def load(
    source: Path | str | Trace | Dataset | Frames,
    settings: Settings = DEFAULTS,
    workers: JobRunner | None = None,
) -> Frames:
    """Return the tables of a trace, given by its path or already read.

    For a large run with a dataset, the tables `comm`, `ops` and `kernels` are loaded lazily, and
    its analyses read them in parts.

    Args:
        source: The trace, or the dataset of a run.
        settings: Settings of the project in which it is analysed.
        workers: Processes for the parts of a large run; by default, one per core.

    Raises:
        TraceError: The path holds no trace.
    """
    if isinstance(source, (str, Path)):
        source = open_run(Path(source))
    if isinstance(source, Frames):
        return source
    if isinstance(source, Trace):
        return frames_of(source, settings)
    from commtrace.analyze.stored import StoredRun

    if workers is not None:
        return StoredRun(source, settings, workers=workers)
    processes = Workers("analyse the run")
    run = StoredRun(source, settings, workers=processes)
    finalize(run, processes.close)
    return run
