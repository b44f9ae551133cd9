"""Time for which a thread was ready to run but had no core, as Linux counts it.

A rank that shares cores with other ranks, or with other programs, is late for no reason of its own.
The run delay of its thread shows that. Reading it takes a microsecond.
"""

from __future__ import annotations

import os
from contextlib import suppress

_FOLDER, _FILE = "/proc/thread-self", "schedstat"
_UNKNOWN = -1


class RunDelay:
    """Run delay of the thread that makes all calls."""

    __slots__ = ("_descriptor", "_total")

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._total = _UNKNOWN

    def since_last(self) -> int:
        """Return the run delay since the preceding call, in ns; -1 if it is unknown."""
        before, self._total = self._total, self._until_now()
        return self._total - before if 0 <= before <= self._total else _UNKNOWN

    def _until_now(self) -> int:
        """Return the run delay since the thread began, in ns; -1 if the system does not count it.

        It remains unknown once reading has failed: the program may have closed all descriptors.
        """
        try:
            if self._descriptor is None:
                self._descriptor = os.open(f"{_FOLDER}/{_FILE}", os.O_RDONLY | os.O_CLOEXEC)
            _, delay, num_runs = os.pread(self._descriptor, 64, 0).split()
            return int(delay) if int(num_runs) else _UNKNOWN
        except (OSError, ValueError):
            self._descriptor = _UNKNOWN
            return _UNKNOWN

    def __del__(self) -> None:
        # The number may be that of another file by now.
        with suppress(Exception):
            if os.readlink(f"/proc/self/fd/{self._descriptor}").endswith(f"/{_FILE}"):
                os.close(self._descriptor)  # type: ignore[arg-type]
