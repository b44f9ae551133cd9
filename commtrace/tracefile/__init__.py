"""Files of a recording: a spool per rank while it runs, a run.json when it is over.

A rank writes batches of rows while it records. The spools are joined afterwards, and any reader
opens the result without torch or pandas:

    SpoolWriter(stream, facts).write({"comm": rows})
    merge_spools(folder, "run.json")
    trace = read_trace("run.json")

`trace.tables["comm"]["wire_bytes"]` is then an array of integers, and `trace.run` holds the facts.
"""

from __future__ import annotations

from commtrace.tracefile.facts import REPLAYED, WRITE_ERROR, WRITE_ERRORS
from commtrace.tracefile.info import Host, RunInfo, run_info
from commtrace.tracefile.joining.collection import copy_parts, merge_spools, read_parts
from commtrace.tracefile.joining.merge import join
from commtrace.tracefile.joining.segments import joined_segments
from commtrace.tracefile.joining.steps import EVERY, PARTIAL_STEPS, RECORDING, STEPS_FROM
from commtrace.tracefile.opening import dataset_at, open_run, read_trace
from commtrace.tracefile.run_file import read_run_file, write_trace
from commtrace.tracefile.run_folder import spools_beside
from commtrace.tracefile.running import RUNNING_RANKS
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

__all__ = [
    "EVERY",
    "FOUND_STEPS",
    "OUTSTANDING",
    "PARTIAL_STEPS",
    "RECORDING",
    "REPLAYED",
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
    "open_run",
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
