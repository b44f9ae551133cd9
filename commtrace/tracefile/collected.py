"""Collecting of a run's parts, wherever they are, into one trace.

    read_parts([Path("node0/RUN.comm"), Path("node1/run.json"), Path("rank-00007.spool")])

A part is a spool, a run file, or a folder that contains such files, in any order. A rank that is in
several of them counts once, if they hold the same recording. Of several runs the latest is read:
`run["left_out_spools"]` lists the files of earlier ones, such as attempts before a restart.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, count
from pathlib import Path

from commtrace.atomic_write import output_error
from commtrace.errors import EmptyTraceError, TraceError, UnbegunSpoolError
from commtrace.permissions import opener
from commtrace.tracefile.merge import end_ns, join, rank_of, start_ns
from commtrace.tracefile.reading import reading
from commtrace.tracefile.run_file import read_run_file, write_trace
from commtrace.tracefile.run_folder import is_part, make_run_folder, require_run_folder
from commtrace.tracefile.segment_join import joined_segments
from commtrace.tracefile.split import LEFT_OUT, spools_of
from commtrace.tracefile.spool import SPOOL_SUFFIX, Spool, read_spool
from commtrace.tracefile.trace import Trace

# Ranks of a file that does not state their clocks began as stated within this time.
_SAME_START_NS = 10_000_000


def merge_spools(source: Path | str, out_path: Path | str) -> Path:
    """Merge the parts at `source` into the run file `out_path` and return that path.

    A rank that was killed before it had written anything is one of the missing ranks.

    Args:
        source: a folder of spools or run files, such as RUN.comm, or one such file.
        out_path: the run file to write.

    Raises:
        EmptyTraceError: there are no parts.
        TraceError: a part cannot be read, or two of them contradict each other.
    """
    return write_trace(read_parts([Path(source)]), out_path)


def copy_parts(sources: Sequence[Path], folder: Path) -> None:
    """Copy the parts of a run into the folder `folder` of a run; none replaces another.

    Raises:
        EmptyTraceError: there are no parts.
        OutputError: the folder cannot be created, or a part cannot be copied.
    """
    summary = f"cannot read the trace {', '.join(map(str, sources))}"
    files = [path for source in sources for path in _files_of(source, summary, "")]
    make_run_folder(folder)
    for path in dict.fromkeys(map(Path.absolute, files)):
        names = (f"{path.stem}.{number}{path.suffix}" for number in count(1))
        for name in chain([path.name], names):
            try:
                with open(path, "rb") as part, open(folder / name, "xb", opener=opener) as copy:
                    shutil.copyfileobj(part, copy)
                break
            except FileExistsError:
                continue
            except OSError as error:
                raise output_error(folder / name, error) from error


def read_parts(sources: Sequence[Path]) -> Trace:
    """Read the parts of a run as one trace.

    Raises:
        EmptyTraceError: there are no parts.
        TraceError: a part cannot be read, or two of them contradict each other.
    """
    summary = f"cannot read the trace {', '.join(map(str, sources))}"
    with reading(summary):
        from commtrace.tracefile.validate import validated  # imported late, since it loads numpy

        files = [
            path
            for source in sources
            for path in _files_of(source, summary, str(source) if len(sources) > 1 else "")
        ]
        spools, left_out = _latest(_of_latest_run(_distinct(joined_segments(_begun(files)))))
        left_out = sorted({name for spool in left_out for name in _names(spool)})
        trace = join(spools, path=sources[0] if len(sources) == 1 else None)
        run = {**trace.run, LEFT_OUT: left_out} if left_out else trace.run
        return validated(replace(trace, run=run), summary)


def _files_of(source: Path, summary: str, place: str) -> list[Path]:
    """Return the spools and run files at `source`; those below a folder only if it has none."""
    if not source.is_dir():
        if source.exists():
            return [source]
        raise TraceError(
            summary,
            place=place,
            found="no such file or folder",
            why=f"a part of a run is a *{SPOOL_SUFFIX} file, a run file, or a folder of those",
            attempt="pass the folder of the run, RUN.comm, or that of an interrupted run, "
            "run.json.spools",
        )
    require_run_folder(source, summary)
    paths = sorted(filter(is_part, source.iterdir())) or sorted(filter(is_part, source.rglob("*")))
    if not paths:
        raise EmptyTraceError(
            summary,
            place=place,
            found=f"a folder without a *{SPOOL_SUFFIX} file",
            why="every recorded rank writes a spool",
            attempt="record the program again, or pass another folder",
        )
    return paths


def _begun(paths: Sequence[Path]) -> list[Spool]:
    """Read the spools that hold a batch; a rank killed before its first counts as missing."""
    spools, failures = [], []
    for path in dict.fromkeys(map(Path.absolute, paths)):
        try:
            spools += [read_spool(path)] if path.suffix == SPOOL_SUFFIX else _of_run_file(path)
        except (EmptyTraceError, UnbegunSpoolError) as error:
            failures.append(error)
    if not spools:
        raise failures[0]
    return spools


def _of_run_file(path: Path) -> list[Spool]:
    from commtrace.tracefile.validate import validated

    return spools_of(validated(read_run_file(path), f"cannot read the trace {path}"))


def _distinct(spools: Sequence[Spool]) -> list[Spool]:
    """Return each recording once, the most complete of several copies."""
    by_process: dict[tuple[object, ...], list[Spool]] = {}
    for spool in sorted(spools, key=_completeness, reverse=True):
        key = (rank_of(spool), spool.facts["host"], spool.facts["pid"])
        kept = by_process.setdefault(key, [])
        if not any(_are_copies(spool, each) for each in kept):
            kept.append(spool)
    distinct = {id(spool) for kept in by_process.values() for spool in kept}
    return [spool for spool in spools if id(spool) in distinct]


def _are_copies(one: Spool, other: Spool) -> bool:
    """Return whether two recordings of a process are the same one."""
    first, second = sorted((one, other), key=start_ns)
    begun_ns = start_ns(second)
    return begun_ns - start_ns(first) <= _SAME_START_NS and begun_ns <= end_ns(first)


def _completeness(spool: Spool) -> tuple[bool, int]:
    return bool(spool.facts.get("complete")), len(spool.tables["comm"]["rank"])


Chosen = tuple[list[Spool], list[Spool]]
"""Spools of the latest run, and those that are left out."""


def _of_latest_run(spools: Sequence[Spool]) -> Chosen:
    """Split off the spools of runs to which the launcher gave another identity."""
    id_of = {id(spool): spool.facts["run"].get("run_id", "") for spool in spools}
    latest = max((each for each in spools if id_of[id(each)]), key=start_ns, default=None)
    accepted = ("", id_of[id(latest)]) if latest else ("",)
    kept = [spool for spool in spools if id_of[id(spool)] in accepted]
    return kept, [spool for spool in spools if id_of[id(spool)] not in accepted]


def _latest(chosen: Chosen) -> Chosen:
    """Split off the spools of an earlier run or attempt.

    A repeated rank shows that the earlier run is over: spools that ended before belong to it.
    """
    spools, left_out = chosen
    last = {rank_of(spool): start_ns(spool) for spool in sorted(spools, key=start_ns)}
    spools = [spool for spool in spools if not _has_ranks(spool, last[rank_of(spool)])]
    again = {rank_of(spool) for spool in spools if start_ns(spool) < last[rank_of(spool)]}
    begun = min((last[rank] for rank in again), default=0)
    latest, earlier = [], list(left_out)
    for spool in spools:
        newest = last[rank_of(spool)]
        is_earlier = end_ns(spool) < (newest if start_ns(spool) < newest else begun)
        (earlier if is_earlier else latest).append(spool)
    return latest, earlier


def _has_ranks(spool: Spool, last_start_ns: int) -> bool:
    """Return whether a spool's process communicated nothing and started the rank itself."""
    is_silent = spool.facts["run"].get("process_group") == "none"
    return is_silent and start_ns(spool) < last_start_ns <= end_ns(spool)


def _names(spool: Spool) -> list[str]:
    """Return the names of a spool's files."""
    return [path.name for path in spool.parts or filter(None, [spool.path])] or [""]
