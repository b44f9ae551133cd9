"""Activity of each rank over time: waiting for a peer, transferring, or anything else.

The intervals of a rank cover the time from its first call to the end of its last without gaps. If
several threads are blocked at once, the earlier call counts. While only calls of unknown blocked
time are in flight, the activity is unknown. Calls of unknown end, and steps that were not recorded
on purpose, have no interval.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.measures.arrivals import arrivals
from commtrace.analyze.measures.intervals import blocked_intervals, one_at_a_time, spans, without
from commtrace.analyze.measures.unrecorded import unrecorded
from commtrace.analyze.run.analysis import Analysis, typed
from commtrace.analyze.run.frame import Frames
from commtrace.schema import INSTANT, Column

WAITING, TRANSFERRING, WORKING, UNKNOWN = "waiting", "transferring", "working", "unknown"

COLUMNS = (
    Column("rank", int, "", "global rank"),
    Column("start_ns", int, INSTANT, "start of the interval"),
    Column("duration_ns", int, "ns", "length of the interval", title="Duration"),
    Column(
        "activity",
        str,
        "",
        "waiting for a peer, transferring, working (anything else), or unknown: in flight is a "
        "call of unknown blocked time",
    ),
    Column("kind", str, "", "kind of the call; empty while working"),
    Column("id", int, "", "number of that call on its rank; -1 while working", title="Call"),
    Column("step", int, "", "step of the call; while working, of the preceding call"),
)


def activity(frames: Frames) -> pd.DataFrame:
    """Return a row per interval, by rank and time; a wait of unknown length is a transfer."""
    table = pd.concat(frames.by_ranks(_of_ranks))
    return typed(table.sort_values("rank", kind="stable"), COLUMNS)


def _of_ranks(frames: Frames) -> pd.DataFrame:
    """Return the intervals of some ranks."""
    comm = frames.comm
    arrival = arrivals(frames)["arrival_ns"]
    blocked = one_at_a_time(blocked_intervals(frames))
    arrived_ns = arrival[blocked["row"]].to_numpy() - frames.start_ns
    ready = np.clip(
        np.where(arrival[blocked["row"]] >= 0, arrived_ns, blocked["start"]),
        blocked["start"],
        blocked["end"],
    )
    in_flight = spans(frames)
    untimed = in_flight[(comm["blocked_ns"] < 0)[in_flight["row"]].to_numpy()]
    parts = pd.concat(
        [
            blocked.assign(activity=WAITING, end=ready),
            blocked.assign(activity=TRANSFERRING, start=ready),
            without(one_at_a_time(untimed), blocked).assign(activity=UNKNOWN),
        ]
    )
    parts = parts[parts["end"] > parts["start"]]
    if parts.empty:
        return typed(parts, COLUMNS)
    works = without(_gaps(parts), unrecorded(frames))
    parts = pd.concat([parts, works]).sort_values(["rank", "start"], kind="stable")
    works = parts["activity"] == WORKING
    row = parts["row"].where(~works, comm.index[0])
    table = pd.DataFrame(
        {
            "rank": parts["rank"],
            "start_ns": parts["start"] + frames.start_ns,
            "duration_ns": parts["end"] - parts["start"],
            "activity": parts["activity"],
            "kind": np.where(works, "", comm["kind"].astype(object)[row]),
            "id": np.where(works, -1, comm["id"][row]),
            "step": parts["step"].where(~works).groupby(parts["rank"]).ffill().fillna(-1),
        }
    )
    return typed(table, COLUMNS)


def _gaps(parts: pd.DataFrame) -> pd.DataFrame:
    """Return the time between the intervals of each rank, in which it works."""
    ordered = parts.sort_values(["rank", "start"], kind="stable")
    start = ordered.groupby("rank")["end"].shift(1).fillna(-1).astype("int64")
    gaps = ordered.assign(activity=WORKING, end=ordered["start"], start=start)
    return gaps[(start >= 0) & (gaps["end"] > gaps["start"])]


ACTIVITY = Analysis(
    "activity",
    "Activity of each rank",
    "What does each rank do over time?",
    activity,
    COLUMNS,
)
