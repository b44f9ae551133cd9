"""Conversion of a rank's recording into the files of a dataset: the work of a single process.

    outlines = outlines_in(path)        first pass, of a part of the run
    rows = convert(job)                 second pass, of a recording

A recording is read, converted by its plan (see `joining.plan`), validated like a trace, and written
as a file for each table. If these files are there already, made of the same part by the same plan,
they are left as they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commtrace.atomic_write import make_folder
from commtrace.errors import EmptyTraceError, UnbegunSpoolError
from commtrace.schema import EVENT_TABLES, FORMAT_VERSION, TABLES
from commtrace.tracefile.dataset.layout import VERSION, Part, table_path
from commtrace.tracefile.dataset.parquet_format import Origin
from commtrace.tracefile.dataset.table_files import TableFile
from commtrace.tracefile.dataset.table_writing import write_table
from commtrace.tracefile.joining.collection import recordings_in
from commtrace.tracefile.joining.merge import converted, rank_row
from commtrace.tracefile.joining.plan import CALL_COLUMNS, RankPlan
from commtrace.tracefile.joining.segments import join_segments
from commtrace.tracefile.joining.steps import with_steps_from
from commtrace.tracefile.outline import (
    Outline,
    end_ns,
    files_of,
    is_spool,
    outline_of,
)
from commtrace.tracefile.reading import DamageError, reading
from commtrace.tracefile.segments import SEGMENT
from commtrace.tracefile.spool import Spool
from commtrace.tracefile.spool_reading import ColumnNames, read_outline, read_spool
from commtrace.tracefile.trace import StringTable, Trace, table_of
from commtrace.tracefile.validate import validated


def outlines_in(path: Path) -> list[Outline] | EmptyTraceError | UnbegunSpoolError:
    """Return the outlines of the recordings in a part; an error if its process wrote none.

    Raises:
        TraceError: the part cannot be read.
    """
    try:
        if is_spool(path):
            return [read_outline(path)]
        return [outline_of(each, place) for place, each in enumerate(recordings_in(path))]
    except (EmptyTraceError, UnbegunSpoolError) as error:
        return error


def joined_outline(segments: Sequence[Outline]) -> Outline:
    """Return the outline of the recording that segments form, which are read for this."""
    paths = [path for each in segments for path in files_of(each)]
    return outline_of(join_segments([read_spool(path) for path in paths]))


def with_calls(outline: Outline, source: str) -> Spool:
    """Read the calls of a recording, with the steps of a source."""
    return with_steps_from(source, _spool_of(outline, CALL_COLUMNS))


def _spool_of(outline: Outline, columns: ColumnNames | None = None) -> Spool:
    """Read the recording that an outline describes."""
    files = files_of(outline)
    if SEGMENT in outline.facts:
        return join_segments([read_spool(path) for path in files])
    return recordings_in(files[0], columns)[outline.place]


@dataclass(frozen=True, slots=True)
class Job:
    """Conversion of a recording.

    Attributes:
        outline: the recording.
        plan: its plan.
        groups: rows of table `groups`.
        parts: its files.
        folder: folder of the dataset.
    """

    outline: Outline
    plan: RankPlan
    groups: tuple[Any, ...]
    parts: tuple[Part, ...]
    folder: Path

    @property
    def rank(self) -> int:
        """The rank."""
        return self.outline.facts["rank"]

    @property
    def key(self) -> str:
        """Identity of the parts and the plan, which the files have in common."""
        plan = self.plan
        names = sorted(plan.group_names.items())
        decided = [plan.steps_from, plan.offset_ns, plan.clock_error_ns, names, self.groups]
        made_of = [self.parts, self.outline.place, self.rank]
        text = json.dumps([VERSION, FORMAT_VERSION, made_of, decided])
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Converted:
    """Result of a job.

    Attributes:
        rows: number of rows by table.
        last_ns: end of the recording on the rank's own clock.
        is_new: the files were written rather than found.
    """

    rows: dict[str, int]
    last_ns: int
    is_new: bool


def convert(jobs: Sequence[Job]) -> list[Converted]:
    """Convert the recordings of a part, which is read once.

    Raises:
        TraceError: the part has changed since, and cannot be read.
        OutputError: a file cannot be written.
    """
    found = [found_files(job) for job in jobs]
    if None not in found:
        return [each for each in found if each is not None]
    path = files_of(jobs[0].outline)[0]
    if is_spool(path):
        return [_written(job, _spool_of(job.outline)) for job in jobs]
    recordings = recordings_in(path)
    return [_written(job, recordings[job.outline.place]) for job in jobs]


def found_files(job: Job) -> Converted | None:
    """Return the result of a job that has been done before; None if it has not."""
    rows, last_ns = {}, -1
    for table in EVENT_TABLES:
        try:
            file = TableFile(table, table_path(job.folder, table, job.rank))
        except DamageError:
            return None
        if file.origin.key != job.key:
            return None
        rows[table], last_ns = file.num_rows, file.origin.last_ns
    return Converted(rows, last_ns, is_new=False)


def _written(job: Job, spool: Spool) -> Converted:
    path = files_of(job.outline)[0]
    summary = f"cannot read the trace {path}"
    with reading(summary):
        spool = with_steps_from(job.plan.steps_from, spool)
        strings = StringTable([""])
        tables: dict[str, Any] = dict(converted(spool, job.plan))
        origin = Origin(job.key, end_ns(spool))
        row = rank_row(spool, job.plan, num_calls=spool.num_calls, last_ns=origin.last_ns)
        for name, rows in (("groups", job.groups), ("ranks", [row]), ("sources", ())):
            tables[name] = table_of(name, rows, strings)
        trace = validated(Trace({}, {name: tables[name] for name in TABLES}, path), summary)
    rows = {}
    for table in EVENT_TABLES:
        make_folder(job.folder / table)
        path = table_path(job.folder, table, job.rank)
        rows[table] = write_table(table, trace.tables[table], path, origin)
    return Converted(rows, origin.last_ns, is_new=True)
