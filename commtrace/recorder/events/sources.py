"""Source lines around the calls of a recording, read when its buffer is written.

No call waits for this: each call site occurs once and is written by the flusher's thread. Text in
`linecache`, such as notebook cells, is taken from there; on disk only regular files of limited size
are opened.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Sequence
from typing import Any

from commtrace.schema import COMM
from commtrace.tracefile.sources import FACT, Snippets, read_lines
from commtrace.tracefile.spool import SITES

_WANTED = ("source_file", "source_line")
_IN_CALL_SITE, _IN_CALL = (
    tuple([column.name for column in columns].index(name) for name in _WANTED)
    for columns in (SITES["comm"], COMM)
)


class Sources:
    """Snippets of one recording; `is_new` marks that they must be written."""

    def __init__(self) -> None:
        self.is_new = False
        self._snippets = Snippets()
        self._seen: set[tuple[str, int]] = set()

    def changes(
        self, call_sites: Iterable[Sequence[Any]], calls: Iterable[Sequence[Any]]
    ) -> dict[str, list[Any]]:
        """Return the fact with all snippets if these call sites or calls add new ones, else {}."""
        new: dict[str, dict[int, None]] = {}
        for rows, (file, line) in ((call_sites, _IN_CALL_SITE), (calls, _IN_CALL)):
            for row in rows:
                if row[file] and (row[file], row[line]) not in self._seen:
                    new.setdefault(row[file], {})[row[line]] = None
        for file, numbers in new.items():
            lines = _lines_of(file)
            for number in numbers:
                self._seen.add((file, number))
                self.is_new |= self._snippets.add(file, number, lines)
        if not self.is_new:
            return {}
        self.is_new = False
        return {FACT: [list(row) for row in self._snippets.rows()]}


def _lines_of(file: str) -> Sequence[str]:
    cached = linecache.cache.get(file)
    if cached is not None and len(cached) == 4:  # otherwise a lazy loader entry without text
        return cached[2]
    return read_lines(file)
