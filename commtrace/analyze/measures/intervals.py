"""Intervals in which ranks were blocked or communicated, and their total length.

Times count from the start of the run, so that they are exact in floats, too. Functions with `by`
treat the intervals of each value of these columns by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from commtrace.analyze.measures.arrivals import blocked_parts, end_ns, has_known_end
from commtrace.analyze.measures.covered import ends_of_parts
from commtrace.analyze.measures.device import computing, is_exact
from commtrace.analyze.run.cached_per_run import cached_per_run
from commtrace.analyze.run.frame import Frames, in_order
from commtrace.analyze.run.sums import numbered_rows


@cached_per_run
def blocked_intervals(frames: Frames) -> pd.DataFrame:
    """Return `row rank step start end` of each interval in which a call blocked its rank.

    For a call on a device, these are the periods in which no kernel computes there, if the trace
    has its kernels (`is_exact`); where calls overlap, the first to start counts. For other calls,
    they are the call itself and the wait for it, as far as these block the rank (`blocked_parts`).
    """
    comm = frames.comm
    exact = is_exact(frames)
    known = comm[(comm["issue_ns"] >= 0) & (comm["blocked_ns"] > 0) & ~exact]
    begin = known["issue_ns"] - frames.start_ns
    end = end_ns(known) - frames.start_ns
    in_call, _, began_waiting = blocked_parts(known, begin)
    # The call and its wait one after the other, so that a rank's intervals are in order of time.
    starts = np.column_stack([begin, began_waiting]).ravel()
    ends = np.column_stack([begin + in_call, end]).ravel()
    lasting = np.flatnonzero(ends > starts)
    of_call = lasting // 2
    calls = pd.DataFrame(
        {
            "row": known.index.to_numpy()[of_call],
            "rank": known["rank"].to_numpy()[of_call],
            "step": known["step"].to_numpy()[of_call],
            "start": starts[lasting],
            "end": ends[lasting],
        }
    )
    exposed = _exposed(frames, exact)
    exposed = exposed[exposed["end"] > exposed["start"]]
    return pd.concat([calls, exposed], ignore_index=True) if len(exposed) else calls


def _exposed(frames: Frames, exact: pd.Series) -> pd.DataFrame:
    """Return the intervals in which calls on devices are in flight and their device is idle."""
    in_flight = spans(frames)
    in_flight = in_flight[exact[in_flight["row"]].to_numpy()]
    if in_flight.empty:
        return in_flight
    device = frames.comm["device"].astype(object)[in_flight["row"]].to_numpy()
    busy = pd.concat(
        pd.DataFrame({"rank": rank, "device": name, "start": each.start, "end": each.end})
        for (rank, name), each in computing(frames).items()
    )
    by = ["rank", "device"]
    free = without(one_at_a_time(in_flight.assign(device=device), by), busy, by)
    return free.drop(columns="device")


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


def without_core(frames: Frames) -> pd.DataFrame:
    """Return `row rank step start end` of the time before calls for which their threads had no
    core, as if it had passed right before the call.
    """
    comm = frames.comm
    rows = comm[(comm["issue_ns"] >= 0) & (comm["run_delay_ns"] > 0)]
    end = rows["issue_ns"] - frames.start_ns
    return pd.DataFrame(
        {
            "row": rows.index,
            "rank": rows["rank"],
            "step": rows["step"],
            "start": end - rows["run_delay_ns"],
            "end": end,
        }
    )


def merged(intervals: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Merge intervals that touch or overlap: `start` and `end` for each value of `by`.

    Intervals with the same value are adjacent, in order of time.
    """
    ordered, keys = _in_order(intervals, by)
    start, end = ordered["start"].to_numpy(), ordered["end"].to_numpy()
    # Without intervals, `last` below would still have an element.
    if not len(ordered):
        return ordered[[*by, "start", "end"]]
    reached = reached_by(end, keys)
    firsts, lasts = ends_of_parts((start[1:] > reached[:-1]) | (keys[1:] != keys[:-1]))
    joined = ordered.iloc[firsts][by].reset_index(drop=True)
    return joined.assign(start=start[firsts], end=reached[lasts])


def _in_order(intervals: pd.DataFrame, by: list[str]) -> tuple[pd.DataFrame, np.ndarray]:
    """Return intervals in order of time for each value of `by`, and a number for each value."""
    if len(intervals):
        start = intervals["start"].to_numpy()
        changes = np.zeros(len(start), dtype=bool)
        for name in by:
            values = intervals[name].to_numpy()
            changes[1:] |= values[1:] != values[:-1]
        changes[0] = True
        # Those of a recording are in order already, which takes less to see than to sort.
        is_once = not intervals.loc[changes, by].duplicated().any()
        if is_once and not ((start[1:] < start[:-1]) & ~changes[1:]).any():
            return intervals, np.cumsum(changes)
    ordered = intervals.sort_values([*by, "start", "end"], kind="stable")
    return ordered, ordered.groupby(by, sort=False).ngroup().to_numpy()


def one_at_a_time(intervals: pd.DataFrame, by: Sequence[str] = ("rank",)) -> pd.DataFrame:
    """Return the intervals without overlaps: at any time, the first to start counts.

    They are sorted by time; intervals that earlier intervals cover are left out.
    """
    if intervals.empty:
        return intervals
    ordered = in_order(intervals, [*by, "start", "end"])
    start, end = ordered["start"].to_numpy(), ordered["end"].to_numpy()
    keys, _ = numbered_rows([ordered[name] for name in by])
    before = np.append(start[:1], reached_by(end, keys)[:-1])
    before = np.where(np.append(True, keys[1:] != keys[:-1]), start, before)
    free = ordered.assign(start=np.maximum(start, before))
    return free[free["end"] > free["start"]]


def without(
    intervals: pd.DataFrame, others: pd.DataFrame, by: Sequence[str] = ("rank",)
) -> pd.DataFrame:
    """Return the parts of the intervals that no other interval covers.

    Neither the intervals nor the others may overlap among themselves: an interval becomes a row for
    each gap between the others that it covers, so that there are at most as many rows as in both.
    """
    key = list(by)
    cover = dict(iter(others.sort_values([*key, "start"]).groupby(key)))
    pieces = [
        _gaps(rows, cover[value]) if value in cover else rows
        for value, rows in intervals.groupby(key, sort=False)
    ]
    return pd.concat(pieces) if pieces else intervals


def _gaps(intervals: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Return the parts of the intervals between sorted others, all with the same key."""
    start, end = intervals["start"].to_numpy(), intervals["end"].to_numpy()
    begins, ends = others["start"].to_numpy(), others["end"].to_numpy()
    first = np.searchsorted(ends, start, side="right")
    num = np.maximum(np.searchsorted(begins, end, side="left") - first + 1, 0)
    which = np.repeat(np.arange(len(start)), num)
    place = np.arange(len(which)) - np.repeat(np.cumsum(num) - num, num)
    after = first[which] + place
    last = len(others) - 1
    begin = np.where(place == 0, start[which], ends[np.clip(after - 1, 0, last)])
    finish = np.where(place == num[which] - 1, end[which], begins[np.clip(after, 0, last)])
    pieces = intervals.iloc[which].assign(start=begin, end=finish)
    return pieces[pieces["end"] > pieces["start"]]


def common(intervals: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Return the parts of the intervals of ranks that other intervals cover; see `without`."""
    return without(intervals, without(intervals, others))


def reached_by(end: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Return the latest end so far among the rows with the same key."""
    return pd.Series(end).groupby(keys, sort=False).cummax().to_numpy()


def lasting(intervals: pd.DataFrame, by: list[str]) -> pd.Series:
    """Return the length of the union of the intervals, for each value of `by`."""
    joined = merged(intervals, by)
    return (joined["end"] - joined["start"]).groupby([joined[name] for name in by]).sum()
