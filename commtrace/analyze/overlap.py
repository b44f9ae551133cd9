"""Exposed and overlapped communication of each rank, step by step.

Communication is under way from issue to completion of any call. *Exposed* is the time in which it
blocks the rank, so that nothing else goes on; the rest is *overlapped* by what the rank does
meanwhile, but for the time in which only calls are under way of which the trace does not know
whether anybody waits for them. Calls at the same time count once. Step -1 is what happens outside
of steps. What a device hides inside of its streams a host's clock does not see.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.analysis import Analysis, typed
from commtrace.analyze.frame import Frames
from commtrace.analyze.intervals import blocked_intervals, lasting, spans
from commtrace.analyze.measures import recorded_ns, steps_ns
from commtrace.schema import Column

COLUMNS = (
    Column("step", int, "", "number of the step, from 0; -1 is outside of steps"),
    Column("rank", int, "", "global rank"),
    Column("duration_ns", int, "ns", "how long the step took on the rank"),
    Column("communication_ns", int, "ns", "time with communication under way"),
    Column("exposed_ns", int, "ns", "time in which it blocked the rank"),
    Column("overlapped_ns", int, "ns", "time in which it did not"),
    Column("unknown_ns", int, "ns", "time in which it is not known whether it did"),
    Column("exposed_share", float, "1", "exposed, as a part of the step"),
    Column("overlapped_share", float, "1", "overlapped, as a part of communication"),
)


def overlap(frames: Frames) -> pd.DataFrame:
    """Return one row per step and rank."""
    by = ["step", "rank"]
    under_way = spans(frames)
    is_known = frames.comm.loc[under_way["row"], "blocked_ns"].to_numpy() >= 0
    communication, known = lasting(under_way, by), lasting(under_way[is_known], by)
    exposed = lasting(blocked_intervals(frames), by)
    duration = steps_ns(frames).groupby([frames.steps[name] for name in by]).sum()
    inside = duration.groupby("rank").sum()
    outside = recorded_ns(frames).sub(inside, fill_value=0).clip(lower=0)
    outside.index = pd.MultiIndex.from_product([[-1], outside.index], names=by)
    index = communication.index.union(duration.index)
    durations = pd.concat([duration, outside])
    table = pd.DataFrame(
        {
            "duration_ns": durations.reindex(index, fill_value=0),
            "communication_ns": communication.reindex(index, fill_value=0),
            "exposed_ns": exposed.reindex(index, fill_value=0),
        },
        index=index,
    ).rename_axis(by)
    table["unknown_ns"] = table["communication_ns"] - known.reindex(index, fill_value=0)
    rest = table["communication_ns"] - table["exposed_ns"] - table["unknown_ns"]
    table["overlapped_ns"] = rest.clip(lower=0)
    for part, whole in (("exposed", "duration"), ("overlapped", "communication")):
        over = table[f"{whole}_ns"].astype("float64").replace(0, np.nan)
        table[f"{part}_share"] = table[f"{part}_ns"] / over
    return typed(table.sort_index().reset_index(), COLUMNS)


OVERLAP = Analysis(
    "overlap",
    "Exposed and overlapped",
    "How much communication does each rank's work hide?",
    overlap,
    COLUMNS,
)
