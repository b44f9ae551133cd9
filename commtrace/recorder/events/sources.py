"""Source lines around the calls of a recording, read when its buffer is written.

The lines around each call are kept, and the functions that calls are made in and from, as far as
their size allows. No call waits for this: each call site occurs once and is written by the
flusher's thread. Text in `linecache`, such as notebook cells, is taken from there; on disk only
regular files of limited size are opened.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Sequence
from types import CodeType
from typing import Any

from commtrace.recorder.caller_chain import CallerChain
from commtrace.recorder.events.location import Location
from commtrace.tracefile.sources import FACT, Snippets, read_lines

_MOST_KNOWN = 1 << 14


class Sources:
    """Snippets of a recording; `is_new` marks that they must be written."""

    def __init__(self) -> None:
        self.is_new = False
        self._snippets = Snippets()
        self._lines: dict[tuple[str, int], None] = {}
        self._functions: dict[CodeType, None] = {}
        self._seen: set[object] = set()

    def note(self, location: Location) -> None:
        """Note a call whose lines, and whose functions, are to be kept."""
        code, callers = location.code, location.callers
        place = id(code), location.instruction
        if code is None or (place in self._seen and callers in self._seen):
            return
        if len(self._seen) > _MOST_KNOWN:
            self._seen.clear()
        self._seen |= {place, callers}
        self._lines[code.co_filename, location.line] = None
        for each in (code, *_codes_of(callers)):
            self._functions[each] = None

    def changes(self) -> dict[str, list[Any]]:
        """Return the fact with all snippets if calls noted since then add any, else {}."""
        lines, functions = self._lines, self._functions
        self._lines, self._functions = {}, {}
        texts: dict[str, Sequence[str]] = {}
        for file, line in lines:
            self.is_new |= self._snippets.add(file, line, _lines_of(file, texts))
        for code in functions:
            if code not in self._seen:
                self._seen.add(code)
                first, last = _extent(code)
                text = _lines_of(code.co_filename, texts)
                self.is_new |= self._snippets.add_function(code.co_filename, first, last, text)
        if not self.is_new:
            return {}
        self.is_new = False
        return {FACT: [list(row) for row in self._snippets.rows()]}


def _codes_of(callers: CallerChain | None) -> Iterable[CodeType]:
    return [code for code, _ in callers.places] if callers else []


def _extent(code: CodeType) -> tuple[int, int]:
    """Return the first and last line that code and the functions in it have instructions at."""
    last = max((line for _, _, line in code.co_lines() if line), default=code.co_firstlineno)
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return code.co_firstlineno, max([last, *(_extent(each)[1] for each in inner)])


def _lines_of(file: str, known: dict[str, Sequence[str]]) -> Sequence[str]:
    if file not in known:
        cached = linecache.cache.get(file)
        # A lazy loader's entry has no text.
        is_text = cached is not None and len(cached) == 4
        known[file] = cached[2] if is_text else read_lines(file)  # type: ignore[index,misc]
    return known[file]
