"""Steps of calls on a device by the clock, and of other calls by the program.

A call belongs to the step that issued it (column `step`). The host can be ahead of its device,
which then runs a call in a later step, or after the last. Times on a device are therefore
counted in the steps in which they pass, and a part of a run has the calls that run in it:

    host      |issue      step 3      |      step 4       |
    device                        |---- call -----|
    counts for step 3             |---|           counts for step 4: the rest
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.measures.device import on_device
from commtrace.analyze.measures.intervals import common, merged, one_at_a_time, without
from commtrace.analyze.run.frame import Frames

OUTSIDE = -1
"""Step of the time outside of steps."""


def step_windows(frames: Frames) -> pd.DataFrame:
    """Return `rank step start end` of each rank's steps, in ns since the start of the run."""
    steps = frames.timed_steps
    windows = pd.DataFrame(
        {
            "rank": steps["rank"],
            "step": steps["step"],
            "start": steps["start_ns"] - frames.start_ns,
            "end": steps["end_ns"] - frames.start_ns,
        }
    )
    return one_at_a_time(windows[windows["end"] > windows["start"]])


def by_clock(frames: Frames) -> pd.Series:
    """Return a mask of the calls that count in the steps in which they run: those on a device.

    If the times of its rank's steps are unknown, a call counts in the step that issued it.
    """
    return on_device(frames) & frames.comm["rank"].isin(frames.timed_steps["rank"].unique())


def in_steps(frames: Frames, intervals: pd.DataFrame) -> pd.DataFrame:
    """Return `rank step start end` of intervals of calls, divided where a step begins or ends.

    Intervals of calls on a device are merged first; concurrent calls are not distinguished.

    Args:
        frames: The run.
        intervals: Intervals with `row rank step start end`, such as from `spans`.
    """
    columns = ["rank", "step", "start", "end"]
    is_by_clock = by_clock(frames)[intervals["row"]].to_numpy()
    if not is_by_clock.any():
        return intervals[columns]
    device, windows = merged(intervals[is_by_clock], ["rank"]), step_windows(frames)
    outside = without(device, windows).assign(step=OUTSIDE)
    parts = (intervals[~is_by_clock], common(windows, device), outside)
    return pd.concat([each[columns] for each in parts], ignore_index=True)


def steps_of_calls(frames: Frames) -> pd.Series:
    """Return the step of each call: the step in which it begins on a device, or that issued it."""
    comm, found = frames.comm, frames.comm["step"].copy()
    windows = dict(iter(step_windows(frames).groupby("rank")))
    begin = comm["issue_ns"] - frames.start_ns
    for rank, rows in comm[by_clock(frames)].groupby("rank").groups.items():
        of_rank = windows[rank].sort_values("start")
        place = np.searchsorted(of_rank["start"].to_numpy(), begin[rows].to_numpy(), "right") - 1
        is_inside = (place >= 0) & (begin[rows].to_numpy() < of_rank["end"].to_numpy()[place])
        found[rows] = np.where(is_inside, of_rank["step"].to_numpy()[place], OUTSIDE)
    return found


def runs_in(frames: Frames, first: int, last: int) -> pd.Series:
    """Return a mask of the calls in the steps from `first` to `last`, by the clock on a device."""
    comm, is_by_clock = frames.comm, by_clock(frames)
    found = comm["step"].between(first, last) & ~is_by_clock
    if not is_by_clock.any():
        return found
    windows = step_windows(frames)
    windows = windows[windows["step"].between(first, last)]
    by_rank = dict(iter(merged(windows, ["rank"]).groupby("rank")))
    for rank, rows in comm[is_by_clock].groupby("rank").groups.items():
        if rank in by_rank:
            start, end = by_rank[rank]["start"].to_numpy(), by_rank[rank]["end"].to_numpy()
            begin = comm["issue_ns"][rows].to_numpy() - frames.start_ns
            # A call without duration runs at the instant at which it begins.
            finish = np.maximum(comm["complete_ns"][rows].to_numpy() - frames.start_ns, begin + 1)
            first_after = np.searchsorted(end, begin, side="right")
            starts = np.append(start, np.iinfo("int64").max)
            found[rows] = starts[first_after] < finish
    return found
