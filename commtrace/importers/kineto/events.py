"""Streaming reader of chrome traces written by torch.profiler.

A trace has many more events than calls. The reader yields one event at a time, so that only events
of interest are kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from commtrace.errors import TruncatedTraceError
from commtrace.importers.input_files import Document

_LIST = re.compile(r'"traceEvents"\s*:\s*\[')
# Between events, and flow arrows: flat objects that nothing here needs, so they are not parsed.
_BETWEEN = re.compile(
    r'(?:[\s,]+|\{\s*"ph"\s*:\s*"[sft]"(?:\s*,\s*"[^"\\]*"\s*:\s*(?:"[^"\\]*"|[-+.\w]+))*\s*\})*'
)


class Events:
    """Iterator over the events of a trace; `about` holds the rest after the iteration."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._text: str = document.content
        self.about: dict[str, Any] = {}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        text = self._text
        begin = _LIST.search(text)
        start = begin.end() if begin else text.index("[") + 1
        place = start
        decode = json.JSONDecoder(strict=False).raw_decode
        between = _BETWEEN.match
        while True:
            gap = between(text, place)
            place = gap.end() if gap else place
            if text.startswith("]", place):
                break
            try:
                event, place = decode(text, place)
            except ValueError as error:
                raise self._broken(place) from error
            if isinstance(event, dict):
                yield event
        if begin:
            self.about = self._rest(text[:start] + text[place:])

    def _rest(self, text: str) -> dict[str, Any]:
        try:
            rest = json.loads(text, strict=False)
        except ValueError as error:
            raise self._broken(len(self._text)) from error
        return {key: value for key, value in rest.items() if key != "traceEvents"}

    def _broken(self, place: int) -> TruncatedTraceError:
        at_end = place >= len(self._text.rstrip())
        return TruncatedTraceError(
            f"cannot import {self._document.path}",
            place=f"character {place}",
            found="the end of the file" if at_end else repr(self._text[place : place + 40]),
            why="a chrome trace is one complete JSON document",
            attempt="copy it again, or profile again and stop the profiler before the program ends",
        )
