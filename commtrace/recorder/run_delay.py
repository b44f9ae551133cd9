"""Time for which a thread was ready to run but had no core, as Linux counts it.

A rank that shares cores with other ranks, or with other programs, is late for no reason of its own.
The run delay of its thread shows that.
"""

from __future__ import annotations

import os
from contextlib import suppress
from os import pread

_FOLDER, _FILE = "/proc/thread-self", "schedstat"
_UNKNOWN = -1
_NOT_OPEN, _FAILED = -1, -2
"""In place of a descriptor."""


class RunDelay:
    """Run delay of the thread that makes all calls, except for `restart`."""

    __slots__ = ("_descriptor", "_total")

    def __init__(self) -> None:
        self._descriptor = _NOT_OPEN
        self._total = _UNKNOWN

    def since_last(self) -> int:
        """Return the run delay since the preceding call, in ns; -1 if it is unknown.

        It remains unknown once reading has failed: the program may have closed all descriptors, and
        the number may belong to another file now.
        """
        if self._descriptor < 0:
            self._open()
            return _UNKNOWN
        before = self._total
        try:
            _, delay, _ = pread(self._descriptor, 64, 0).split()
            self._total = total = int(delay)
        except (OSError, ValueError):
            self._descriptor = _FAILED
            return _UNKNOWN
        return _UNKNOWN if before < 0 else total - before

    def restart(self) -> None:
        """Forget the preceding call: what the thread has done since was not recorded."""
        self._total = _UNKNOWN

    def _open(self) -> None:
        """Read the run delay for the first time, if the system counts it."""
        if self._descriptor == _FAILED:
            return
        self._descriptor = _FAILED
        with suppress(OSError):
            descriptor = os.open(f"{_FOLDER}/{_FILE}", os.O_RDONLY | os.O_CLOEXEC)
            with suppress(ValueError):
                _, delay, num_runs = pread(descriptor, 64, 0).split()
                if int(num_runs):
                    self._descriptor, self._total = descriptor, int(delay)
                    return
            os.close(descriptor)

    def __del__(self) -> None:
        # The number may belong to another file by now.
        with suppress(Exception):
            if os.readlink(f"/proc/self/fd/{self._descriptor}").endswith(f"/{_FILE}"):
                os.close(self._descriptor)
