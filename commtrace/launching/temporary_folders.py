"""Temporary folders, removed by the next launcher if their own was killed.

    for sentence in remove_abandoned():
        warnings.warn(sentence)
    with scratch_folder() as folder:
        ...

Each is accessible to its owner only and has a file that names its process, which holds a lock on it
for its lifetime: a folder whose lock can be taken is abandoned. A spool in such a folder is a
recording that nobody has seen yet: it is kept, and its location is reported.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "commtrace-"
_MARK_NAME = "owner"
_SPOOLS = "*.spool"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a temporary folder of this process, and remove it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    with _owning(folder):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _owning(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; its mark file becomes visible only once it is locked."""
    unlocked = folder / f".{_MARK_NAME}"
    with unlocked.open("x", encoding="ascii") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        mark.write(f"process {os.getpid()}, since {time.time_ns()} ns\n")
        mark.flush()
        unlocked.rename(folder / _MARK_NAME)
        yield


def remove_abandoned() -> list[str]:
    """Remove the temporary folders of killed processes, except for their spools.

    Returns:
        A sentence with the location of each folder of spools, once.
    """
    notes = []
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), _abandoned(folder):
            if folders := sorted({path.parent for path in folder.rglob(_SPOOLS)}):
                _remove_all_but_spools(folder)
                notes += map(_note, folders)
            else:
                shutil.rmtree(folder)
    return notes


@contextlib.contextmanager
def _abandoned(folder: Path) -> Iterator[None]:
    """Lock a folder whose process is gone; OSError if it is alive or of another user."""
    # Other users may create folders and links of such names beside ours.
    if not _is_own(folder.lstat(), stat.S_IFDIR):
        raise PermissionError(folder)
    mark = os.open(folder / _MARK_NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not _is_own(os.fstat(mark), stat.S_IFREG):
            raise PermissionError(folder)
        fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(mark)


def _is_own(found: os.stat_result, kind: int) -> bool:
    return stat.S_IFMT(found.st_mode) == kind and found.st_uid == os.geteuid()


def _remove_all_but_spools(folder: Path) -> None:
    """Remove everything but spools; without the mark, the folder is not examined again."""
    (folder / _MARK_NAME).unlink()
    for path in folder.iterdir():
        if path.is_file() and not path.match(_SPOOLS):
            path.unlink()


def _note(folder: Path) -> str:
    return (
        f"a killed process left a recording in {folder}: "
        f"`commtrace merge {folder} -o run.json` merges it"
    )
