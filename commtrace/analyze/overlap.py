"""Exposed and overlapped communication of each rank, step by step.

A call is in flight from its issue to its completion. *Exposed* communication blocks the rank;
*overlapped* communication runs concurrently with other work of the rank. The time is *unknown* if
all calls in flight have unknown blocked times. Concurrent calls count once. Step -1 is the time
outside of steps. Overlap between streams of a device is not visible to the clock of the host.
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
    Column("step", int, "", "number of the step, from 0; -1 outside of steps"),
    Column("rank", int, "", "global rank"),
    Column("duration_ns", int, "ns", "duration of the step on the rank", title="Duration"),
    Column(
        "communication_ns", int, "ns", "time with communication in flight", title="Communicating"
    ),
    Column(
        "exposed_ns", int, "ns", "time in which communication blocked the rank", title="Exposed"
    ),
    Column(
        "overlapped_ns",
        int,
        "ns",
        "time in which communication did not block the rank",
        title="Overlapped",
    ),
    Column("unknown_ns", int, "ns", "time for which this is unknown", title="Not known"),
    Column("exposed_share", float, "1", "exposed time as a fraction of the step"),
    Column(
        "overlapped_share",
        float,
        "1",
        "overlapped time as a fraction of communication",
        title="Hidden share",
    ),
)


def overlap(frames: Frames) -> pd.DataFrame:
    """Return one row per step and rank."""
    by = ["step", "rank"]
    in_flight = spans(frames)
    is_known = frames.comm.loc[in_flight["row"], "blocked_ns"].to_numpy() >= 0
    communication, known = lasting(in_flight, by), lasting(in_flight[is_known], by)
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
    for part, total in (("exposed", "duration"), ("overlapped", "communication")):
        over = table[f"{total}_ns"].astype("float64").replace(0, np.nan)
        table[f"{part}_share"] = table[f"{part}_ns"] / over
    return typed(table.sort_index().reset_index(), COLUMNS)


OVERLAP = Analysis(
    "overlap",
    "Exposed and overlapped",
    "How much communication is exposed, and how much overlapped?",
    overlap,
    COLUMNS,
    topic="When",
    shown=(
        "step rank duration_ns communication_ns exposed_ns overlapped_ns "
        "exposed_share overlapped_share unknown_ns"
    ),
)
