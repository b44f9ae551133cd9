"""Preparation of a dataset from the parts of a run, in two passes over them.

    first pass     outlines of all parts: facts, groups, steps       in parallel
    plan           clocks, names of groups, source of steps          needs all ranks
    second pass    a file for each rank and table                    in parallel
    manifest       last, since it makes the rest a dataset

A process holds one rank at a time. A preparation that was interrupted continues with the files that
are not there yet, and so does one that has waited for another process to prepare the same dataset.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from commtrace.atomic_write import make_folder, output_error
from commtrace.errors import EmptyTraceError, TraceError, UnbegunSpoolError
from commtrace.schema import EVENT_TABLES, FORMAT_VERSION, TABLES
from commtrace.tracefile.dataset.conversion import (
    Converted,
    Job,
    convert,
    joined_outline,
    outlines_in,
    with_calls,
)
from commtrace.tracefile.dataset.layout import (
    MANIFEST,
    SHARED_TABLES,
    VERSION,
    Manifest,
    Part,
    dataset_folder,
    digest_of,
    parts_of,
    read_manifest,
    table_path,
    write_manifest,
)
from commtrace.tracefile.dataset.parquet_format import Origin, pyarrow
from commtrace.tracefile.dataset.table_files import footer_digest, footer_digests
from commtrace.tracefile.dataset.table_writing import write_table
from commtrace.tracefile.joining.collection import files_in
from commtrace.tracefile.joining.latest_run import latest_run
from commtrace.tracefile.joining.merge import converted, rank_row
from commtrace.tracefile.joining.plan import JoinPlan, plan_of
from commtrace.tracefile.joining.segments import joined_segments
from commtrace.tracefile.joining.split import LEFT_OUT
from commtrace.tracefile.joining.steps import with_steps_from
from commtrace.tracefile.outline import Outline, files_of, rank_of
from commtrace.tracefile.reading import DamageError, reading
from commtrace.tracefile.run_folder import PREPARED
from commtrace.tracefile.spool import SMALL_RANK_TABLES, Spool
from commtrace.tracefile.trace import Columns, StringColumn, StringTable, table_of
from commtrace.workers import Workers

OnProgress = Callable[[int, int], None]
"""Receives the number of recordings that are done, and the total."""

# Smaller runs take less time than starting processes.
_BYTES_OF_ONE_WORKER = 4 << 20


def prepare_dataset(
    folder: Path, *, workers: int | None = None, progress: OnProgress | None = None
) -> Path:
    """Prepare the dataset of the run in a folder, and return its folder.

    The parts are kept. Files that an earlier, interrupted preparation has written are not written
    again.

    Args:
        folder: the folder of the run, RUN.comm, or any folder of spools.
        workers: number of processes; by default one per core, or none for a small run.
        progress: receives how many recordings are done, and how many there are.

    Raises:
        EmptyTraceError: there are no parts.
        TraceError: a part cannot be read, or two of them contradict each other.
        OutputError: the dataset cannot be written; the files written so far are used next time.
        UsageError: pyarrow is not installed.
    """
    folder = folder.absolute()
    summary = f"cannot read the trace {folder}"
    pyarrow(f"cannot prepare the dataset of {folder}")
    target = dataset_folder(folder)
    with reading(summary):
        files = files_in(folder, summary)
    with _locked(target), reading(summary):
        # Before they are read: a part that grows meanwhile makes the dataset stale.
        parts = parts_of(folder, files)
        if workers is None and sum(size for _, size, _ in parts) < _BYTES_OF_ONE_WORKER:
            workers = 1
        with Workers("prepare the dataset", workers) as pool:
            outlines, left_out = latest_run(_outlines(files, pool))
            outlines.sort(key=rank_of)
            plan = plan_of(outlines, lambda place, source: with_calls(outlines[place], source))
            # Files of another preparation are replaced, one after the other.
            _remove_changed(target)
            _remove(target / MANIFEST)
            shutil.rmtree(target / PREPARED, ignore_errors=True)
            jobs = _jobs(outlines, plan, {folder / part[0]: part for part in parts}, target)
            found = _converted(jobs, pool, progress)
        small = _small_tables(outlines, plan, found)
        origin = Origin(digest_of(json.dumps([VERSION, FORMAT_VERSION, parts]).encode("ascii")))
        for name, columns in small.items():
            write_table(name, columns, table_path(target, name), origin)
        run = {**plan.run, LEFT_OUT: left_out} if left_out else plan.run
        write_manifest(_manifest(parts, run, small, found, target), target)
        _remove_others(target, sorted(found))
    return target


@contextlib.contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Create the folder of a dataset; wait while another process prepares it."""
    make_folder(target)
    try:
        handle = os.open(target, os.O_RDONLY)
    except OSError as error:
        raise output_error(target, error) from error
    try:
        with contextlib.suppress(OSError):  # of file systems that cannot lock folders
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _manifest(
    parts: tuple[Part, ...],
    run: Mapping[str, Any],
    small: Mapping[str, Columns],
    found: Mapping[int, Converted],
    target: Path,
) -> Manifest:
    rows = {name: {rank: each.rows[name] for rank, each in found.items()} for name in EVENT_TABLES}
    for name in SMALL_RANK_TABLES:
        num = Counter(small[name]["rank"])
        rows[name] = {rank: num[rank] for rank in found}
    totals = {name: len(next(iter(small[name].values()))) for name in SHARED_TABLES}
    return Manifest(parts, run, rows, totals, footer_digests(target, rows))


def _outlines_in(_: None, path: Path) -> Any:
    return outlines_in(path)


def _convert(_: None, jobs: list[Job]) -> list[Converted]:
    return convert(jobs)


def _outlines(files: Sequence[Path], pool: Workers) -> list[Outline]:
    """Return the outlines of all recordings; a rank killed before its first batch has none."""
    found: dict[int, list[Outline] | EmptyTraceError | UnbegunSpoolError] = dict(
        pool.results(_outlines_in, None, files)
    )
    results = [found[place] for place in range(len(files))]
    outlines = [each for result in results if isinstance(result, list) for each in result]
    for result in results:
        if not outlines and not isinstance(result, list):
            raise result
    return joined_segments(outlines, joined_outline)


def _jobs(
    outlines: Sequence[Outline], plan: JoinPlan, part_of: Mapping[Path, Part], target: Path
) -> list[list[Job]]:
    """Return the jobs; those on the same run file are together, so that it is read once."""
    jobs: dict[Path, list[Job]] = {}
    for outline, of_rank in zip(outlines, plan.ranks, strict=True):
        files = files_of(outline)
        parts = tuple([part_of[path] for path in files if path in part_of])
        job = Job(outline, of_rank, plan.groups, parts, target)
        jobs.setdefault(files[0], []).append(job)
    return list(jobs.values())


def _converted(
    jobs: Sequence[list[Job]], pool: Workers, progress: OnProgress | None
) -> dict[int, Converted]:
    num_done, num_all = 0, sum(map(len, jobs))
    found: dict[int, Converted] = {}
    for place, results in pool.results(_convert, None, jobs):
        for job, result in zip(jobs[place], results, strict=True):
            found[job.rank] = result
        num_done += len(results)
        if progress is not None:
            progress(num_done, num_all)
    return found


def _small_tables(
    outlines: Sequence[Outline], plan: JoinPlan, found: Mapping[int, Converted]
) -> dict[str, Columns]:
    """Return the tables that have a single file each."""
    strings = StringTable([""])
    of_ranks: dict[str, dict[str, Any]] = {
        name: dict(table_of(name, (), strings)) for name in SMALL_RANK_TABLES
    }
    rank_rows = []
    for outline, of_rank in zip(outlines, plan.ranks, strict=True):
        done = found[rank_of(outline)]
        own = with_steps_from(of_rank.steps_from, _without_events(outline))
        tables = converted(own, of_rank, strings)
        for table, columns in of_ranks.items():
            for name, values in tables[table].items():
                _array(columns[name]).extend(_array(values))
        rank_rows.append(
            rank_row(outline, of_rank, num_calls=done.rows["comm"], last_ns=done.last_ns)
        )
    return {
        **of_ranks,
        "groups": table_of("groups", plan.groups, strings),
        "ranks": table_of("ranks", rank_rows, strings),
        "sources": table_of("sources", plan.sources, strings),
    }


def _array(values: Any) -> Any:
    """Return the numbers of a column, or the indices of its strings."""
    return values.codes if isinstance(values, StringColumn) else values


def _without_events(outline: Outline) -> Spool:
    none = {name: table_of(name, (), StringTable([""])) for name in EVENT_TABLES}
    small = {name: dict(outline.tables[name]) for name in outline.tables}
    return Spool(outline.facts, {**none, **small}, outline.is_truncated)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise output_error(path, error) from error


def _remove_changed(target: Path) -> None:
    """Remove files that have changed since a former preparation, which would be found again."""
    with contextlib.suppress(TraceError):  # no manifest, or none that states anything
        for name, digest in read_manifest(target, "").files.items():
            with contextlib.suppress(DamageError):  # which is found, too
                if footer_digest(target / name) != digest:
                    _remove(target / name)


def _remove_others(target: Path, ranks: Sequence[int]) -> None:
    """Remove files that are not of this dataset, left by former ranks or killed processes."""
    kept = {target / MANIFEST, *(table_path(target, name) for name in TABLES)}
    kept |= {table_path(target, name, rank) for name in EVENT_TABLES for rank in ranks}
    for folder in (target, *(target / name for name in EVENT_TABLES)):
        for path in folder.glob("*") if folder.is_dir() else ():
            is_ours = path.suffix == ".parquet" or path.name.endswith(MANIFEST)
            if path not in kept and is_ours and path.is_file():
                with contextlib.suppress(OSError):
                    path.unlink()
