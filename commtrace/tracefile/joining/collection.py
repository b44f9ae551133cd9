"""Collection of a run's parts, wherever they are, into one trace.

    read_parts([Path("node0/RUN.comm"), Path("node1/run.json"), Path("rank-00007.spool")])

A part is a spool, a run file, or a folder that contains such files, in any order. A rank that is in
several of them counts once, if they hold the same recording. Only the latest of several runs is
read: `run["left_out_spools"]` lists the files of earlier ones, such as attempts before a restart.
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
from commtrace.tracefile.beside_spool import files_beside
from commtrace.tracefile.joining.latest_run import latest_run
from commtrace.tracefile.joining.merge import join
from commtrace.tracefile.joining.segments import joined_segments
from commtrace.tracefile.joining.split import LEFT_OUT, spools_of
from commtrace.tracefile.outline import is_spool
from commtrace.tracefile.reading import reading
from commtrace.tracefile.run_file import read_run_file, write_trace
from commtrace.tracefile.run_folder import (
    DATASET,
    MANIFEST,
    is_part,
    make_run_folder,
    require_run_folder,
)
from commtrace.tracefile.spool import SPOOL_SUFFIX, Spool
from commtrace.tracefile.spool_reading import ColumnNames, read_spool
from commtrace.tracefile.trace import Trace


def merge_spools(source: Path | str, out_path: Path | str) -> Path:
    """Merge the parts at `source` into the run file `out_path` and return that path.

    A rank that was killed before it had written anything counts as missing.

    Args:
        source: a folder of spools or run files, such as RUN.comm, or a single such file.
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
    files = [path for source in sources for path in files_in(source, summary)]
    make_run_folder(folder)
    for path in dict.fromkeys(map(Path.absolute, files)):
        names = (f"{path.stem}.{number}{path.suffix}" for number in count(1))
        for name in chain([path.name], names):
            try:
                _copy(path, folder / name)
                for beside in files_beside(path) if is_spool(path) else ():
                    _copy(beside, (folder / name).with_suffix(beside.suffix))
                break
            except FileExistsError:
                continue
            except OSError as error:
                raise output_error(folder / name, error) from error


def _copy(path: Path, new: Path) -> None:
    with open(path, "rb") as part, open(new, "xb", opener=opener) as copy:
        shutil.copyfileobj(part, copy)
    shutil.copystat(path, new)


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
            for path in files_in(source, summary, str(source) if len(sources) > 1 else "")
        ]
        spools, left_out = latest_run(joined_segments(_begun(files)))
        trace = join(spools, path=sources[0] if len(sources) == 1 else None)
        run = {**trace.run, LEFT_OUT: left_out} if left_out else trace.run
        return validated(replace(trace, run=run), summary)


def files_in(source: Path, summary: str, place: str = "") -> list[Path]:
    """Return the spools and run files at `source`; those below a folder only if it has none.

    Raises:
        EmptyTraceError: the folder has none.
        TraceError: there is no such file, or the folder is of a later format.
    """
    if not source.is_dir():
        if source.exists():
            return [source]
        raise TraceError(
            summary,
            place=place,
            found="no such file or folder",
            why=f"a part of a run is a *{SPOOL_SUFFIX} file, a run file, or a folder of those",
            attempt="pass the folder of the run, RUN.comm, or the spools of an interrupted "
            "run, run.json.spools",
        )
    require_run_folder(source, summary)
    paths = sorted(filter(is_part, source.iterdir())) or sorted(filter(is_part, source.rglob("*")))
    if not paths and (source / DATASET / MANIFEST).is_file():
        raise EmptyTraceError(
            summary,
            place=place,
            found=f"a dataset, and no *{SPOOL_SUFFIX} file",
            why="a dataset is prepared from spools, and cannot be merged without them",
            attempt=f"`commtrace report {source}`, which reads the dataset as it is",
        )
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
            spools += recordings_in(path)
        except (EmptyTraceError, UnbegunSpoolError) as error:
            failures.append(error)
    if not spools:
        raise failures[0]
    return spools


def recordings_in(path: Path, columns: ColumnNames | None = None) -> list[Spool]:
    """Return the recordings in a part: one in a spool, one per rank in a run file.

    Args:
        path: the part.
        columns: the only columns that are needed, by table.

    Raises:
        EmptyTraceError: the file is empty.
        UnbegunSpoolError: the spool has no complete batch.
        TraceError: it cannot be read.
    """
    if is_spool(path):
        return [read_spool(path, columns)]
    from commtrace.tracefile.validate import validated

    return spools_of(validated(read_run_file(path), f"cannot read the trace {path}"))
