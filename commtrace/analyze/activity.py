"""Activity of each rank over time: waiting for a peer, transferring, or anything else.

The intervals of a rank cover the time from its first call to the end of its last one without gaps.
If several threads are blocked at once, the earlier call counts.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.analysis import Analysis, typed
from commtrace.analyze.arrivals import arrivals
from commtrace.analyze.frame import Frames
from commtrace.analyze.intervals import blocked_intervals, reached_by
from commtrace.schema import INSTANT, Column

WAITING, TRANSFERRING, WORKING = "waiting", "transferring", "working"

COLUMNS = (
    Column("rank", int, "", "global rank"),
    Column("start_ns", int, INSTANT, "start of the interval"),
    Column("duration_ns", int, "ns", "length of the interval", title="Duration"),
    Column("activity", str, "", "waiting for a peer, transferring, or working (anything else)"),
    Column("kind", str, "", "kind of the blocking call; empty while working"),
    Column("id", int, "", "number of that call on its rank; -1 while working", title="Call"),
    Column("step", int, "", "step of the call; while working, of the preceding call"),
)


def activity(frames: Frames) -> pd.DataFrame:
    """Return one row per interval, by rank and time; a wait of unknown length is a transfer."""
    comm = frames.comm
    arrival = arrivals(frames)["arrival_ns"]
    blocked = blocked_intervals(frames).sort_values(["rank", "start", "end"], kind="stable")
    if blocked.empty:
        return typed(blocked, COLUMNS)
    rank = blocked["rank"].to_numpy()
    start, end = blocked["start"].to_numpy(), blocked["end"].to_numpy()
    before = np.append(np.int64(0), reached_by(end, rank)[:-1])
    before = np.where(np.append(True, rank[1:] != rank[:-1]), start, before)
    free = blocked.assign(start=np.maximum(start, before), gap=start - before, before=before)
    free = free[free["end"] > free["start"]]
    arrived_ns = arrival[free["row"]].to_numpy() - frames.start_ns
    ready = np.clip(
        np.where(arrival[free["row"]] >= 0, arrived_ns, free["start"]), free["start"], free["end"]
    )
    parts = pd.concat(
        [
            free.assign(activity=WAITING, end=ready),
            free.assign(activity=TRANSFERRING, start=ready),
            free.assign(activity=WORKING, start=free["before"], end=free["before"] + free["gap"]),
        ]
    )
    parts = parts[parts["end"] > parts["start"]].sort_values(["rank", "start"], kind="stable")
    works = parts["activity"] == WORKING
    table = pd.DataFrame(
        {
            "rank": parts["rank"],
            "start_ns": parts["start"] + frames.start_ns,
            "duration_ns": parts["end"] - parts["start"],
            "activity": parts["activity"],
            "kind": np.where(works, "", comm["kind"].astype(object)[parts["row"]]),
            "id": np.where(works, -1, comm["id"][parts["row"]]),
            "step": parts["step"].where(~works).groupby(parts["rank"]).ffill().fillna(-1),
        }
    )
    return typed(table, COLUMNS)


ACTIVITY = Analysis(
    "activity",
    "Activity of each rank",
    "What does each rank do over time?",
    activity,
    COLUMNS,
)
