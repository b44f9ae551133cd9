"""Intervals in which ranks were blocked or communicated, and their total length.

Times count from the start of the run, so that they are exact in floats, too.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.arrivals import blocked_parts, end_ns, has_known_end
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
    """Return `row rank step start end` of each call of known end, from issue to completion."""
    comm = frames.comm
    known = comm[has_known_end(comm)]
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
    is_first = np.ones(len(ordered), dtype=bool)
    is_first[1:] = (start[1:] > reached[:-1]) | (keys[1:] != keys[:-1])
    firsts = np.flatnonzero(is_first)
    last = np.append(firsts[1:], len(ordered)) - 1
    joined = ordered.iloc[firsts][by].reset_index(drop=True)
    return joined.assign(start=start[firsts], end=reached[last])


def one_at_a_time(intervals: pd.DataFrame) -> pd.DataFrame:
    """Return the intervals of each rank without overlaps: at any time, the first to start counts.

    They are sorted by rank and time; those that are covered by earlier ones are left out.
    """
    ordered = intervals.sort_values(["rank", "start", "end"], kind="stable")
    if ordered.empty:
        return ordered
    rank, start, end = (ordered[name].to_numpy() for name in ("rank", "start", "end"))
    before = np.append(start[:1], reached_by(end, rank)[:-1])
    before = np.where(np.append(True, rank[1:] != rank[:-1]), start, before)
    free = ordered.assign(start=np.maximum(start, before))
    return free[free["end"] > free["start"]]


def without(intervals: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Return the parts of the intervals that no other interval of their rank covers.

    `others` do not overlap each other. An interval becomes a row for each gap between them, so
    that many long intervals over many others would become too many rows; merge them before.
    """
    by_rank = dict(iter(others.sort_values(["rank", "start"]).groupby("rank")))
    pieces = [
        _gaps(of_rank, by_rank[rank]) if rank in by_rank else of_rank
        for rank, of_rank in intervals.groupby("rank", sort=False)
    ]
    return pd.concat(pieces) if pieces else intervals


def _gaps(intervals: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Return the parts of the intervals between sorted others, of one rank."""
    start, end = intervals["start"].to_numpy(), intervals["end"].to_numpy()
    begins, ends = others["start"].to_numpy(), others["end"].to_numpy()
    first = np.searchsorted(ends, start, side="right")
    num = np.searchsorted(begins, end, side="left") - first + 1
    which = np.repeat(np.arange(len(start)), num)
    place = np.arange(len(which)) - np.repeat(np.cumsum(num) - num, num)
    after = first[which] + place
    last = len(others) - 1
    begin = np.where(place == 0, start[which], ends[np.clip(after - 1, 0, last)])
    finish = np.where(place == num[which] - 1, end[which], begins[np.clip(after, 0, last)])
    pieces = intervals.iloc[which].assign(start=begin, end=finish)
    return pieces[pieces["end"] > pieces["start"]]


def reached_by(end: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Return the latest end so far among the rows with the same key."""
    return pd.Series(end).groupby(keys, sort=False).cummax().to_numpy()


def lasting(intervals: pd.DataFrame, by: list[str]) -> pd.Series:
    """Return the length of the union of the intervals, for each value of `by`."""
    joined = merged(intervals, by)
    return (joined["end"] - joined["start"]).groupby([joined[name] for name in by]).sum()
