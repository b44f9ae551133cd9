"""The union of some intervals of time: which instants it covers, and how much of a period.

Used for the computing of devices, and for the calls of threads, by the importer of profiles.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable


class Intervals:
    """Union of intervals `(start, end)`."""

    def __init__(self, intervals: Iterable[tuple[int, int]]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._sums = [0]
        for start, end in sorted(intervals):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
                self._sums[-1] = self._sums[-2] + self._ends[-1] - self._starts[-1]
            else:
                self._starts.append(start)
                self._ends.append(end)
                self._sums.append(self._sums[-1] + end - start)

    def covers(self, instant: int) -> bool:
        """Return whether an instant lies in an interval."""
        place = bisect_right(self._starts, instant)
        return bool(place) and self._ends[place - 1] > instant

    def free_from(self, start: int, end: int) -> int:
        """Return the time from `start` to the next interval, `end` at the latest."""
        if self.covers(start):
            return 0
        place = bisect_right(self._starts, start)
        return min(self._starts[place] if place < len(self._starts) else end, end) - start

    def free_in(self, start: int, end: int) -> int:
        """Return the time between `start` and `end` that no interval covers."""
        return end - start - (self._until(end) - self._until(start))

    def _until(self, instant: int) -> int:
        place = bisect_right(self._starts, instant)
        return self._sums[place] - max(self._ends[place - 1] - instant, 0) if place else 0


NOTHING = Intervals(())
"""The union of no intervals."""
