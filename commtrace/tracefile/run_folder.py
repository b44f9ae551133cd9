"""RUN.comm, the folder of a run: a spool for each rank and attempt, and a manifest.

    RUN.comm/manifest.json        {"format": "commtrace-run", "version": 1, ...}
    RUN.comm/rank-00003.spool     the first recording of rank 3 in this folder
    RUN.comm/rank-00003.1.spool   the next recording: the rank was restarted, or another run began
    RUN.comm/rank-00003.s1.spool  segment 1 of the first recording, if its size is bounded
    RUN.comm/rank-00003.dump      stacks of the rank, if they were asked for (see `dump_files`)
    RUN.comm/rank-00003.exit      how its process ended (see `beside_spool`)

Recording only adds files, so nodes may share the folder or each have its own; `read_parts`
reads the parts of a run wherever they are.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from commtrace.atomic_write import atomic_write, is_unfinished, make_folder, output_error
from commtrace.errors import NewerTraceError, NotATraceError, OutputError
from commtrace.tracefile.beside_spool import EXIT_SUFFIX
from commtrace.tracefile.dump_files import DUMP_SUFFIX, REQUEST, STACKS_REQUEST, STACKS_SUFFIX
from commtrace.tracefile.reading import Allowance, is_int, parse_json, read_file, text_in
from commtrace.tracefile.run_file import OPENING
from commtrace.tracefile.spool import DONE_SUFFIX, SPOOL_SUFFIX

MANIFEST = "manifest.json"
DATASET = "dataset"
"""Name of the folder of the dataset (see `dataset`) in the folder of a run."""
PREPARED = "prepared"
"""Name of the folder, inside the dataset's, with data that analyses have prepared from it."""
SPOOLS_SUFFIX = ".spools"
_BESIDE = (DONE_SUFFIX, DUMP_SUFFIX, STACKS_SUFFIX, EXIT_SUFFIX)
_REQUESTS = (REQUEST, STACKS_REQUEST)
_FORMAT = "commtrace-run"
_VERSION = 1


def spools_beside(path: Path) -> Path:
    """Return the folder of spools of a run that is recorded to a file, as long as it is."""
    return path.with_name(f"{path.name}{SPOOLS_SUFFIX}")


def make_run_folder(folder: Path) -> None:
    """Create the folder of a run with its manifest, unless another rank already has.

    Raises:
        OutputError: the folder cannot be created.
    """
    make_folder(folder)
    path = folder / MANIFEST
    if path.exists():
        return
    manifest = {
        "format": _FORMAT,
        "version": _VERSION,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    # A rank on another host may be writing the same; if nothing can be written, the spool says so.
    with contextlib.suppress(OutputError), atomic_write(path) as unfinished:
        unfinished.write_text(f"{json.dumps(manifest)}\n", encoding="ascii")


def is_part(path: Path) -> bool:
    """Return whether a file is a part of a run: a spool or a run file, by its first characters."""
    if path.suffix == SPOOL_SUFFIX:
        return True
    if path.suffix != ".json" or path.name == MANIFEST or not path.is_file() or is_unfinished(path):
        return False
    with open(path, "rb") as stream:
        return stream.read(len(OPENING)) == OPENING.encode()


def remove_run_folder(folder: Path) -> None:
    """Remove a folder of parts, and its dataset; foreign files stay."""
    _remove_dataset(folder / DATASET)
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name in (MANIFEST, *_REQUESTS) or path.suffix in _BESIDE or is_part(path):
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # there is none, or it holds other files
        folder.rmdir()


def replace_run_folder(folder: Path, new: Path) -> None:
    """Put the new folder of a run in the place of another; foreign files stay.

    Raises:
        OutputError: the system refused an operation.
    """
    try:
        remove_run_folder(folder)
        if not folder.exists():
            new.rename(folder)
            return
        for path in new.iterdir():
            path.rename(folder / path.name)
        new.rmdir()
    except OSError as error:
        raise error if isinstance(error, OutputError) else output_error(folder, error) from error


def _remove_dataset(folder: Path) -> None:
    # First, since files without it are no dataset.
    (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder / PREPARED, ignore_errors=True)
    for path in folder.glob("**/*.parquet"):
        path.unlink(missing_ok=True)
    for each in (*folder.glob("*"), folder):
        with contextlib.suppress(OSError):  # it is no folder, or holds other files
            each.rmdir()


def require_run_folder(folder: Path, summary: str) -> None:
    """Check the manifest of a folder; a missing or foreign manifest is accepted.

    Raises:
        NotATraceError: the manifest is damaged.
        NewerTraceError: a later commtrace has recorded the run.
    """
    path = folder / MANIFEST
    if not path.is_file():
        return
    data = read_file(path, summary)
    try:
        manifest: Any = parse_json(text_in(data), Allowance(summary, len(data)))
    except ValueError:
        manifest = None
    if not isinstance(manifest, Mapping) or manifest.get("format") != _FORMAT:
        return
    version = manifest.get("version")
    if not is_int(version) or version < 1:
        raise NotATraceError(
            summary,
            place=str(path),
            found=f"version {version!r}",
            why="a version is an integer from 1",
            attempt=f"copy the folder again; without {MANIFEST}, its parts are read as they are",
        )
    if version > _VERSION:
        raise NewerTraceError(
            summary,
            place=str(path),
            found=f"version {version} of the folder's format",
            why=f"this commtrace supports versions up to {_VERSION}",
            attempt="install the commtrace that recorded it, or a newer version",
        )
