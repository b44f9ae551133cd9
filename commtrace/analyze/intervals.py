"""Intervals in which ranks were blocked or communicated, and their total length.

Tables of intervals are joined for many keys at once (`merged`); `Covered` has the intervals of one
key, and measures them in any window. Times count from the start of the run, so that they are exact
in floats, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from commtrace.analyze.arrivals import blocked_parts, end_ns
from commtrace.analyze.frame import Frames


def blocked_intervals(frames: Frames) -> pd.DataFrame:
    """Return `row rank step start end` of each interval in which a call blocked its rank.

    These are the call itself and the wait for it, as far as they are blocked (`blocked_parts`).
    """
    comm = frames.comm
    known = comm[(comm["issue_ns"] >= 0) & (comm["blocked_ns"] > 0)]
    begin = known["issue_ns"] - frames.start_ns
    end = end_ns(known) - frames.start_ns
    in_call, _, began_waiting = blocked_parts(known, begin)
    shared = {"row": known.index, "rank": known["rank"], "step": known["step"]}
    calls = pd.DataFrame({**shared, "start": begin, "end": begin + in_call})
    waits = pd.DataFrame({**shared, "start": began_waiting, "end": end})
    both = pd.concat([calls, waits], ignore_index=True)
    return both[both["end"] > both["start"]].reset_index(drop=True)


def spans(frames: Frames) -> pd.DataFrame:
    """Return `row rank step start end` of each call, from issue to completion."""
    comm = frames.comm
    known = comm[comm["issue_ns"] >= 0]
    return pd.DataFrame(
        {
            "row": known.index,
            "rank": known["rank"],
            "step": known["step"],
            "start": known["issue_ns"] - frames.start_ns,
            "end": end_ns(known) - frames.start_ns,
        }
    )


def merged(intervals: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Merge intervals that touch or overlap: `start` and `end` for each value of `by`."""
    ordered = intervals.sort_values([*by, "start", "end"], kind="stable")
    keys = ordered.groupby(by, sort=False).ngroup().to_numpy()
    start, end = ordered["start"].to_numpy(), ordered["end"].to_numpy()
    # Without intervals, `last` below would still have an element.
    if not len(ordered):
        return ordered[[*by, "start", "end"]]
    reached = reached_by(end, keys)
    firsts, lasts = _ends_of_parts((start[1:] > reached[:-1]) | (keys[1:] != keys[:-1]))
    joined = ordered.iloc[firsts][by].reset_index(drop=True)
    return joined.assign(start=start[firsts], end=reached[lasts])


def _ends_of_parts(is_new: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and last row of each part; `is_new` tells it of the rows from the second."""
    firsts = np.flatnonzero(np.append(True, is_new))
    return firsts, np.append(firsts[1:], len(is_new) + 1) - 1


def reached_by(end: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Return the latest end so far among the rows with the same key."""
    return pd.Series(end).groupby(keys, sort=False).cummax().to_numpy()


def lasting(intervals: pd.DataFrame, by: list[str]) -> pd.Series:
    """Return the length of the union of the intervals, for each value of `by`."""
    joined = merged(intervals, by)
    return (joined["end"] - joined["start"]).groupby([joined[name] for name in by]).sum()


@dataclass(frozen=True, slots=True)
class Covered:
    """Time that is covered by at least one of some intervals.

    Attributes:
        start: Start of each of its disjoint parts, in order, in ns.
        end: Their ends, likewise.
        before: Total length of the parts before each one, and of all of them.
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
        firsts, lasts = _ends_of_parts(start[1:] > reached[:-1])
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


NOTHING = Covered(np.zeros(0, "int64"), np.zeros(0, "int64"), np.zeros(1, "int64"))
"""No time at all."""
