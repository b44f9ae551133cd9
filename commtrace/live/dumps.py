"""Dumps that appear in the folder of a run while it is watched."""

from __future__ import annotations

import os
from pathlib import Path

from commtrace.errors import TraceError
from commtrace.tracefile.dump_files import DUMP_SUFFIX, StackDump, read_dump

MOST_DUMPS = 4096
_SLACK_NS = 2_000_000_000  # of the clock of a file system


class Dumps:
    """Reads each dump once; dumps older than `since_ns` are left out."""

    def __init__(self, folder: Path, since_ns: int) -> None:
        self._folder = folder
        self._since_ns = since_ns - _SLACK_NS
        self._seen: dict[str, tuple[int, int]] = {}
        self._dumps: dict[str, StackDump] = {}

    def new(self) -> tuple[StackDump, ...]:
        """Return the last dump of each rank since then."""
        try:
            with os.scandir(self._folder) as entries:
                found = [each for each in entries if each.name.endswith(DUMP_SUFFIX)]
        except OSError:
            return tuple(self._dumps.values())
        for entry in found[:MOST_DUMPS]:
            try:
                status = entry.stat()
                identity = status.st_mtime_ns, status.st_ino
                if status.st_mtime_ns < self._since_ns or self._seen.get(entry.name) == identity:
                    continue
                self._dumps[entry.name] = read_dump(Path(entry.path))
                self._seen[entry.name] = identity
            except (OSError, TraceError):  # removed or replaced since, or no dump
                continue
        return tuple(sorted(self._dumps.values(), key=lambda dump: dump.rank))
