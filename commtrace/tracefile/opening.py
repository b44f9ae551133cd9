"""Opening of a run by its path: as a trace in memory, or as a dataset if it is too large for that.

run = open_run(Path("RUN.comm"))       # a Trace, or a Dataset, of which parts are read
trace = read_trace("run.json")         # a Trace in any case
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from commtrace.errors import NotATraceError, UsageError
from commtrace.schema import EVENT_TABLES
from commtrace.tracefile.joining.collection import read_parts
from commtrace.tracefile.joining.merge import join
from commtrace.tracefile.joining.segments import joined_segments
from commtrace.tracefile.reading import reading
from commtrace.tracefile.run_file import read_run_file
from commtrace.tracefile.run_folder import spools_beside
from commtrace.tracefile.running import READ_NS, RUNNING_RANKS, running_ranks
from commtrace.tracefile.spool import SPOOL_SUFFIX
from commtrace.tracefile.spool_reading import read_spool
from commtrace.tracefile.trace import Trace

if TYPE_CHECKING:
    from commtrace.tracefile.dataset import Dataset

ROWS_IN_MEMORY = 3_000_000
"""Number of calls, operators and kernels up to which a run is read into memory."""


def dataset_at(path: Path) -> Dataset | None:
    """Return the dataset of the run in a folder; None if there is none that can be used."""
    if not path.is_dir():
        return None
    from commtrace.tracefile.dataset import dataset_of  # imported late: it loads numpy

    return dataset_of(path)


def read_trace(path: Path | str) -> Trace:
    """Read the trace at `path`: a run.json, the folder RUN.comm of a run, or its spools.

    Raises:
        TraceError: `path` holds no readable trace; states its contents and the supported formats.
    """
    path = Path(path)
    summary = f"cannot read the trace {path}"
    with reading(summary):
        if path.is_dir():
            dataset = dataset_at(path)
            return _of_folder(path) if dataset is None else dataset.trace()
        if not path.exists() and not path.is_symlink():
            spools = spools_beside(path)
            record = "record one with `commtrace run --nproc 4 -o run.json SCRIPT`"
            merge = f"merge the spools with `commtrace merge {spools} -o {path}`"
            raise NotATraceError(
                summary,
                found="no such file",
                why="a trace is a file, or the folder of spools of an interrupted run",
                attempt=merge if spools.is_dir() else record,
            )
        from commtrace.tracefile.validate import validated  # imported late, since it loads numpy

        if path.suffix == SPOOL_SUFFIX:
            return validated(join(joined_segments([read_spool(path)]), path=path), summary)
        return validated(read_run_file(path), summary)


def open_run(
    path: Path, *, in_parts: bool = False, read: Callable[[Path], Trace] = read_trace
) -> Trace | Dataset:
    """Return the run at `path`: its dataset if it is too large for memory, and else its trace.

    Args:
        path: The trace.
        in_parts: The dataset is wanted, however small the run is.
        read: Function that reads the trace.

    Raises:
        UsageError: The dataset is wanted, and there is none.
        TraceError: `path` holds no trace, or its dataset is damaged.
    """
    dataset = dataset_at(path)
    if dataset is None and in_parts:
        raise UsageError(
            f"cannot read {path} in parts",
            found="no dataset that is up to date",
            why="parts are read from the dataset of a run",
            attempt=f"`commtrace merge {path}` prepares it",
        )
    if dataset is None:
        return read(path)
    is_large = sum(dataset.num_rows(table) for table in EVENT_TABLES) > ROWS_IN_MEMORY
    return dataset if in_parts or is_large else read(path)


def _of_folder(folder: Path) -> Trace:
    read_ns = time.time_ns()
    trace = read_parts([folder])
    ranks = running_ranks(trace, folder)
    facts = {RUNNING_RANKS: ranks, READ_NS: read_ns}
    return replace(trace, run={**trace.run, **facts}) if ranks else trace
