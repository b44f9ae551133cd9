"""Events of the Trace Event Format as texts, as Perfetto's importer demands them.

Perfetto rejects a file with an escaped pair of surrogates, so characters beyond the Basic
Multilingual Plane are written as they are, and all others outside of ASCII as escapes. Numbers are
finite. Times are µs, exact to the nanosecond. Source: Perfetto, src/trace_processor/importers/json.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any

import numpy as np

from commtrace.escaping import encodable

MOST_DEPTH = 500
"""Depth of nested slices; Perfetto drops deeper slices."""

_ESCAPED = re.compile("[\x7f-\uffff]")


def us(ns: int) -> str:
    """Format nanoseconds as µs, without rounding."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def dumped(value: Any) -> str:
    """Format a value as JSON."""
    text = json.dumps(_allowed(value), separators=(",", ":"), ensure_ascii=False)
    return _ESCAPED.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def _allowed(value: Any) -> Any:
    """Replace numbers that JSON lacks by null, and make all texts encodable."""
    if isinstance(value, dict):
        return {encodable(str(name)): _allowed(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_allowed(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (int, type(None))) else encodable(str(value))


def meta(what: str, pid: int, tid: int, /, **args: Any) -> str:
    """Return the event that names or sorts a process or a track."""
    return dumped({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args})


def track(rank: int, number: int, name: str) -> Iterator[str]:
    """Yield the events that name a track and sort it by its number."""
    yield meta("thread_name", rank, number, name=name)
    yield meta("thread_sort_index", rank, number, sort_index=number)


def rest(name: str, category: str, /, **args: Any) -> str:
    """Return the fields of a slice besides its place and times."""
    return dumped({"name": name, "cat": category, "args": args})[1:-1]


def slice_event(pid: int, tid: int, start: int, end: int, fields: str) -> str:
    """Return a slice, with times in ns."""
    return f'{{"ph":"X","pid":{pid},"tid":{tid},"ts":{us(start)},"dur":{us(end - start)},{fields}}}'


def arrow(kind: str, name: str, number: int, pid: int, tid: int, at: int) -> str:
    """Return one end of an arrow: `s` its start, `t` a step, `f` its end, at a slice of a track.

    The ends of an arrow have the same name and number, and follow their slices in the file.
    """
    end = ',"bp":"e"' if kind == "f" else ""
    return (
        f'{{"ph":"{kind}","id":{number},"name":"{name}","cat":"{name}","pid":{pid},'
        f'"tid":{tid},"ts":{us(at)}{end}}}'
    )


def lanes(keys: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return each interval's lane within its key: the lowest that is free when it starts.

    The intervals are ordered by key and start.
    """
    found = np.zeros(len(keys), dtype=np.int64)
    key_before, busy, free, num = None, [], [], 0
    for place, (key, start, end) in enumerate(
        zip(keys.tolist(), starts.tolist(), ends.tolist(), strict=True)
    ):
        if key != key_before:
            key_before, busy, free, num = key, [], [], 0
        while busy and busy[0][0] <= start:
            heappush(free, heappop(busy)[1])
        if free:
            lane = heappop(free)
        else:
            lane, num = num, num + 1
        found[place] = lane
        # An interval without duration still occupies its lane: slices at one instant do not nest.
        heappush(busy, (max(end, start + 1), lane))
    return found
