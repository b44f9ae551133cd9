"""Order in which the host launched the work of a stream, or of a device.

A stream runs its work in the order of the launches. The launch of some work may be unknown: it lies
before the work's start, after the launch of the work before it, and before the launch of the work
behind it. At an instant within these bounds, the last launched work is not known.

    stream      |-- 3 --|  |-- 4 --|     |-- 5 --|        launches of 3 and 5 known, 4 unknown
    launches  3 .....?????..5                             `?`: 3 or 4 is the last one

Used by `sync_rows`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from commtrace.importers.intervals import Intervals
from commtrace.torch_names import NOT_KNOWN


# A tuple, since a profile has many.
class LaunchedWork(NamedTuple):
    """Work of a stream.

    Attributes:
        number: Its id.
        start: Its start on the device, in ns.
        launch: When the host began to launch it, in ns; None if unknown.
        correlation: Number of the launch, which grows with each call of the process.
    """

    number: int
    start: int
    launch: int | None
    correlation: int


class LaunchOrder:
    """Order of the launches of some streams.

    Args:
        streams: The work of each stream, in order of its start.
    """

    def __init__(self, streams: Sequence[Sequence[LaunchedWork]]) -> None:
        self._order: list[tuple[int, int, int]] = []
        """Latest instant of the launch, correlation and number of the work."""
        doubts: list[tuple[int, int]] = []
        for stream in streams:
            self._order += [
                (launch, correlation, number)
                for number, _, launch, correlation in stream
                if launch is not None
            ]
            for number, before, last in _bounds(stream):
                self._order.append((last, _BEFORE_ALL, number))
                doubts.append((before, last))
        self._order.sort()
        self._doubts = Intervals([each for each in doubts if each[0] < each[1]])

    def last_before(self, instant: int, correlation: int) -> int:
        """Return the last work launched before a call; -1 if there is none, or if it is unknown.

        Args:
            instant: Begin of the call.
            correlation: Number of the call, which orders it among launches at the same instant.
        """
        place = bisect_left(self._order, (instant, correlation))
        if not place or self._doubts.covers(instant):
            return NOT_KNOWN
        return self._order[place - 1][2]


def _bounds(stream: Sequence[LaunchedWork]) -> Iterator[tuple[int, int, int]]:
    """Yield the work of unknown launch, and the earliest and latest instant of its launch."""
    if all([work.launch is not None for work in stream]):
        return
    behind = _FAR
    latest: list[int] = []
    for work in reversed(stream):
        behind = min(behind, work.start if work.launch is None else work.launch)
        latest.append(behind)
    before = -_FAR
    for work, last in zip(stream, reversed(latest), strict=True):
        if work.launch is None:
            yield work.number, before, last
        else:
            before = max(before, work.launch)


_FAR = 1 << 62
_BEFORE_ALL = NOT_KNOWN - 1
"""Correlation of work that was launched before every call at that instant."""
