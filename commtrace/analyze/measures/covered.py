"""Time covered by the intervals of a key, such as the kernels of a device, in any window.

`covered_time` answers for many keys at once, `intervals` returns the intervals themselves. Times
count from the start of the run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Covered:
    """Time covered by at least one of several intervals.

    Attributes:
        start: Start of each of its disjoint parts, in order, in ns.
        end: Their ends, likewise.
        before: Total length of the parts before each part, and of all of them.
    """

    start: np.ndarray
    end: np.ndarray
    before: np.ndarray

    @classmethod
    def by(cls, start: np.ndarray, end: np.ndarray) -> Covered:
        """Return the time covered by intervals in any order, which may overlap.

        An interval of no length outside of the others is a part of no length.
        """
        if not len(start):
            return NOTHING
        order = np.argsort(start, kind="stable")
        start, reached = start[order], np.maximum.accumulate(end[order])
        firsts, lasts = ends_of_parts(start[1:] > reached[:-1])
        start, end = start[firsts], reached[lasts]
        return cls(start, end, np.append(np.int64(0), np.cumsum(end - start)))

    def joined(self, other: Covered) -> Covered:
        """Return the time that is covered by either."""
        if not len(other.start) or not len(self.start):
            return self if len(self.start) else other
        return Covered.by(
            np.concatenate([self.start, other.start]), np.concatenate([self.end, other.end])
        )

    def until(self, instants: np.ndarray) -> np.ndarray:
        """Return the covered time before each instant."""
        if not len(self.start):
            return np.zeros(len(instants), dtype="int64")
        begun = self.start.searchsorted(instants, side="right")
        ahead = np.maximum(self.end[begun - 1] - instants, 0)
        return self.before[begun] - np.where(begun > 0, ahead, 0)

    def within(self, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Return the covered time in each of some windows."""
        before = self.until(np.concatenate([first, last]))
        return before[len(first) :] - before[: len(first)]


def ends_of_parts(is_new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and last row of each part.

    `is_new` marks the rows that begin a part, from the second row on.
    """
    firsts = np.flatnonzero(np.append(True, is_new))
    return firsts, np.append(firsts[1:], len(is_new) + 1) - 1


NOTHING = Covered(np.zeros(0, "int64"), np.zeros(0, "int64"), np.zeros(1, "int64"))
"""No time at all."""
