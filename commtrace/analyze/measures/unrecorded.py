"""Unrecorded time of each rank, in a run that recorded only every Nth step.

    steps         0                    10                   20
    recorded  ----===                  ===                  ===  |
    unknown          ..................   ..................   ..   until the end of the recording

It counts neither as recorded time nor as work of the rank.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.run.cached_per_run import cached_per_run, of_each_call
from commtrace.analyze.run.frame import Frames
from commtrace.tracefile import EVERY


@cached_per_run
def unrecorded(frames: Frames) -> pd.DataFrame:
    """Return `rank start end` of this time, in ns since the start of the run."""
    steps = frames.timed_steps if EVERY in frames.run else frames.timed_steps[:0]
    ends = frames.ranks.drop_duplicates("rank").set_index("rank")[["start_ns", "end_ns"]]
    rows = [
        (rank, start, end)
        for rank, of_rank in steps.sort_values("start_ns").groupby("rank")
        if rank in ends.index
        for start, end in _gaps(frames, rank, of_rank, *ends.loc[rank])
        if end > start
    ]
    return pd.DataFrame(rows, columns=["rank", "start", "end"]).astype("int64")


def _gaps(
    frames: Frames, rank: object, steps: pd.DataFrame, begin_ns: int, end_ns: int
) -> list[tuple[int, int]]:
    """Return the gaps before, between and after the steps of a rank."""
    number, start, end = (steps[name].to_numpy() for name in ("step", "start_ns", "end_ns"))
    issued = np.sort(frames.comm.loc[frames.comm["rank"] == rank, "issue_ns"].to_numpy())
    # Calls after the last step are those of a step in progress.
    after = issued[np.searchsorted(issued, end[-1]) :]
    is_gap = number[1:] != number[:-1] + 1
    gaps = [
        *([(begin_ns, start[0])] if number[0] and begin_ns >= 0 else []),
        *zip(end[:-1][is_gap], start[1:][is_gap], strict=True),
        (end[-1], after[0] if len(after) else end_ns),
    ]
    return [(int(first) - frames.start_ns, int(last) - frames.start_ns) for first, last in gaps]


def unrecorded_ns(frames: Frames) -> pd.Series:
    """Return the length of this time, in ns, by rank; ranks without any are left out."""
    gaps = unrecorded(frames)
    return (gaps["end"] - gaps["start"]).groupby(gaps["rank"]).sum()


@of_each_call
def resumed(frames: Frames) -> pd.Series:
    """Return the last end of this time before each call, in ns since the start; nan without any."""
    gaps, comm = unrecorded(frames), frames.comm
    issue = (comm["issue_ns"] - frames.start_ns)[comm["issue_ns"] >= 0]
    found = pd.Series(np.nan, index=comm.index)
    for rank, rows in gaps.groupby("rank"):
        ends = np.append(np.sort(rows["end"].to_numpy()).astype("float64"), np.nan)
        of_rank = issue[comm["rank"][issue.index] == rank]
        found[of_rank.index] = ends[np.searchsorted(ends[:-1], of_rank, side="right") - 1]
    return found
