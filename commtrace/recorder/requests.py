"""Requests that appear as a file in the folder of a run."""

from __future__ import annotations

from pathlib import Path

from commtrace.errors import CommtraceError
from commtrace.tracefile.dump_files import requested


class Requests:
    """Sees each request once; a request already there is of an earlier recording."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = _identity(path)

    def new(self, rank: int) -> str:
        """Return the id of a request that has appeared since, and asks this rank; else nothing."""
        identity = _identity(self._path)
        if identity is None or identity == self._seen:
            return ""
        self._seen = identity
        try:
            return requested(self._path, rank)
        except CommtraceError:  # removed since, or not ours
            return ""

    def forget_current(self) -> None:
        """Leave out the request that is there now."""
        self._seen = _identity(self._path)


def _identity(path: Path) -> tuple[int, int] | None:
    """Return a file's identity, which a request that replaces it does not share."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns
