"""Intervals in which ranks were blocked or communicated, and their total length.

Times count from the start of the run, so that they are exact in floats, too.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.arrivals import blocked_parts, end_ns
from commtrace.analyze.frame import Frames
from commtrace.schema import COMPUTE


def blocked_intervals(frames: Frames) -> pd.DataFrame:
    """Return `row rank step start end` of each interval in which a call blocked its rank.

    Of a call on a device, these are the periods in which no kernel computes, if the trace has its
    kernels. Otherwise they are the call itself and the wait for it, as far as they are blocked
    (`blocked_parts`).
    """
    comm = frames.comm
    known = comm[(comm["issue_ns"] >= 0) & (comm["blocked_ns"] > 0)]
    on_device = _without_computation(frames, known)
    known = known[~known.index.isin(on_device["row"])]
    begin = known["issue_ns"] - frames.start_ns
    end = end_ns(known) - frames.start_ns
    in_call, _, began_waiting = blocked_parts(known, begin)
    shared = {"row": known.index, "rank": known["rank"], "step": known["step"]}
    calls = pd.DataFrame({**shared, "start": begin, "end": begin + in_call})
    waits = pd.DataFrame({**shared, "start": began_waiting, "end": end})
    every = pd.concat([calls, waits, on_device], ignore_index=True)
    return every[every["end"] > every["start"]].reset_index(drop=True)


def _without_computation(frames: Frames, calls: pd.DataFrame) -> pd.DataFrame:
    """Return `row rank step start end` of parts of calls in which their device does not compute.

    A call is left out if these parts do not add up to its blocked time, as in a part of a run,
    which lacks kernels.
    """
    base = frames.start_ns
    computing = frames.kernels[frames.kernels["category"] == COMPUTE]
    busy = pd.DataFrame(
        {
            "rank": computing["rank"],
            "device": computing["device"].astype(object),
            "start": computing["start_ns"] - base,
            "end": computing["start_ns"] + computing["duration_ns"] - base,
        }
    )
    by = ["rank", "device"]
    busy_of = {key: of_device for key, of_device in merged(busy, by).groupby(by)}
    has_kernels = calls["rank"].isin(frames.kernels["rank"].unique())
    calls = calls[has_kernels & (calls["stream"] >= 0)]
    calls = calls.assign(device=calls["device"].astype(object))
    parts = [
        _gaps(busy_of[key] if key in busy_of else busy.head(0), of_device, base)
        for key, of_device in calls.groupby(by)
    ]
    found = pd.concat([calls[["rank", "step"]].head(0).assign(row=0, start=0, end=0), *parts])
    lasts = (found["end"] - found["start"]).groupby(found["row"]).sum()
    fits = lasts.index[lasts == calls["blocked_ns"].reindex(lasts.index)]
    return found[found["row"].isin(fits)].reset_index(drop=True)


def _gaps(busy: pd.DataFrame, calls: pd.DataFrame, base: int) -> pd.DataFrame:
    """Return `row rank step start end` of the parts of calls outside of disjoint intervals."""
    first, last = calls["issue_ns"].to_numpy() - base, calls["complete_ns"].to_numpy() - base
    starts, ends = busy["start"].to_numpy(), busy["end"].to_numpy()
    # Gap n is the one before interval n.
    begin = np.searchsorted(ends, first, side="right")
    num = np.maximum(np.searchsorted(starts, last, side="left") - begin + 1, 0)
    call = np.repeat(np.arange(len(calls)), num)
    gap = np.arange(num.sum()) - np.repeat(np.cumsum(num) - num, num) + begin[call]
    opens = np.maximum(np.append(first.min(), ends)[gap], first[call])
    closes = np.minimum(np.append(starts, last.max())[gap], last[call])
    own = calls.iloc[call]
    return pd.DataFrame(
        {
            "row": own.index,
            "rank": own["rank"].to_numpy(),
            "step": own["step"].to_numpy(),
            "start": opens,
            "end": np.maximum(opens, closes),
        }
    )


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
    is_first = np.ones(len(ordered), dtype=bool)
    is_first[1:] = (start[1:] > reached[:-1]) | (keys[1:] != keys[:-1])
    firsts = np.flatnonzero(is_first)
    last = np.append(firsts[1:], len(ordered)) - 1
    joined = ordered.iloc[firsts][by].reset_index(drop=True)
    return joined.assign(start=start[firsts], end=reached[last])


def reached_by(end: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Return the latest end so far among the rows with the same key."""
    return pd.Series(end).groupby(keys, sort=False).cummax().to_numpy()


def lasting(intervals: pd.DataFrame, by: list[str]) -> pd.Series:
    """Return the length of the union of the intervals, for each value of `by`."""
    joined = merged(intervals, by)
    return (joined["end"] - joined["start"]).groupby([joined[name] for name in by]).sum()
