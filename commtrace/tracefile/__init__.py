"""Files of a recording: a spool per rank while it runs, a run.json when it is over.

A rank writes batches of rows while it records. The spools are joined afterwards, and any reader
opens the result without torch or pandas:

    SpoolWriter(stream, facts).write({"comm": rows})
    merge_spools(folder, "run.json")
    trace = read_trace("run.json")

`trace.tables["comm"]["wire_bytes"]` is then an array of integers, and `trace.run` holds the facts.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from commtrace.errors import NotATraceError
from commtrace.tracefile.facts import WRITE_ERROR, WRITE_ERRORS
from commtrace.tracefile.info import Host, RunInfo, run_info
from commtrace.tracefile.joining.collection import copy_parts, merge_spools, read_parts
from commtrace.tracefile.joining.merge import join
from commtrace.tracefile.joining.segments import joined_segments
from commtrace.tracefile.joining.steps import EVERY, PARTIAL_STEPS, RECORDING, STEPS_FROM
from commtrace.tracefile.reading import reading
from commtrace.tracefile.run_file import read_run_file, write_trace
from commtrace.tracefile.run_folder import spools_beside
from commtrace.tracefile.running import READ_NS, RUNNING_RANKS, running_ranks
from commtrace.tracefile.segments import SegmentedWriter
from commtrace.tracefile.spool import (
    FOUND_STEPS,
    OUTSTANDING,
    SPOOL_SUFFIX,
    STEP_SOURCES,
    SpoolWriter,
    sites_of,
    spool_name,
)
from commtrace.tracefile.spool_reading import parse_spool, read_spool
from commtrace.tracefile.trace import StringColumn, Trace, require_events, trace_of_rows

if TYPE_CHECKING:
    from commtrace.tracefile.dataset import Dataset

__all__ = [
    "EVERY",
    "FOUND_STEPS",
    "OUTSTANDING",
    "PARTIAL_STEPS",
    "RECORDING",
    "RUNNING_RANKS",
    "SPOOL_SUFFIX",
    "STEPS_FROM",
    "STEP_SOURCES",
    "WRITE_ERROR",
    "WRITE_ERRORS",
    "Host",
    "RunInfo",
    "SegmentedWriter",
    "SpoolWriter",
    "StringColumn",
    "Trace",
    "copy_parts",
    "dataset_at",
    "join",
    "joined_segments",
    "merge_spools",
    "parse_spool",
    "read_parts",
    "read_run_file",
    "read_spool",
    "read_trace",
    "require_events",
    "run_info",
    "sites_of",
    "spool_name",
    "spools_beside",
    "trace_of_rows",
    "write_trace",
]


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


def _of_folder(folder: Path) -> Trace:
    read_ns = time.time_ns()
    trace = read_parts([folder])
    ranks = running_ranks(trace, folder)
    facts = {RUNNING_RANKS: ranks, READ_NS: read_ns}
    return replace(trace, run={**trace.run, **facts}) if ranks else trace
