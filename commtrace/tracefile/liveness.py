"""Signs of life of recordings, and the processes and systems that give them.

A recording whose facts have `beat_s` sets the time of its spool's last change to now every so many
seconds, whatever the program does, so that readers can distinguish a rank that waits from one that
is gone. This takes a single system call, and the file stays as it is.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import time
from pathlib import Path
from typing import BinaryIO

BEAT = "beat_s"
"""Name of the fact of a spool that states the seconds between two signs of life."""
BEAT_S = 1

ALIVE = "alive_ns"
"""Name of the fact of a spool that states when a rank that recorded nothing new still ran."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@functools.cache
def boot() -> str:
    """Return the identity of the running system, whose processes share the clock."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return socket.gethostname()


def beat(stream: BinaryIO) -> None:
    """Give a sign of life: set the time of a file's last change to now, as the file system has it.

    A file system that refuses is no error of the program; the rank then counts as silent.
    """
    with contextlib.suppress(OSError, ValueError):  # ValueError: the stream is closed
        os.utime(stream.fileno())


def has_process(pid: int) -> bool:
    """Return whether there is a process of that id; false if the id is unknown, -1."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def process_age_s(pid: int) -> float:
    """Return the age of a process in seconds; infinite if unknown."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        # The name of the process, in parentheses, may contain blanks. The start is field 22.
        ticks = int(stat.rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return float("inf")
