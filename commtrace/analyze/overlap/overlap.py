"""Exposed and overlapped communication of each rank, step by step.

A call is in flight from its issue to its completion. *Exposed* communication blocks the rank;
*overlapped* communication runs concurrently with other work of the rank. The time is *unknown* if
all calls in flight have unknown blocked times. Concurrent calls count once. Step -1 is the time
outside of steps. Overlap between streams of a device is not visible to the clock of the host.

Communication on a device counts in the steps in which it runs, by the clock; communication on the
host counts in the step that issued it, up to the duration of the step. Only the time within a part
of a run counts for the part.

Calls of unknown end are in flight for an unknown time, which `num_untimed` counts. Times of a row
in which no call has the value that they need are unknown, not 0.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.measures.arrivals import has_known_end
from commtrace.analyze.measures.intervals import blocked_intervals, lasting, spans
from commtrace.analyze.measures.measures import recorded_ns, steps_ns
from commtrace.analyze.measures.step_times import in_steps, steps_of_calls
from commtrace.analyze.run.analysis import Analysis, typed
from commtrace.analyze.run.cached_per_run import of_each_part
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.known import NOT_KNOWN
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
    Column("num_calls", int, "", "calls", title="Calls"),
    Column(
        "num_untimed", int, "", "calls of unknown blocked time or unknown issue", title="Not timed"
    ),
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
    """Return a row per step and rank."""
    table = pd.concat(frames.by_ranks(exposed_of_ranks))
    return typed(table.sort_values(["step", "rank"], ignore_index=True), COLUMNS)


@of_each_part
def exposed_of_ranks(frames: Frames) -> pd.DataFrame:
    """Return the rows of some ranks."""
    by = ["step", "rank"]
    comm = frames.comm
    in_flight = spans(frames)
    is_timed = (comm["issue_ns"] >= 0) & (comm["blocked_ns"] >= 0)
    is_known = is_timed[in_flight["row"]].to_numpy()

    def time_in(intervals: pd.DataFrame) -> pd.Series:
        return lasting(in_steps(frames, _in_part(frames, intervals)), by)

    communication, exposed = time_in(in_flight), time_in(blocked_intervals(frames))
    known = communication if is_known.all() else time_in(in_flight[is_known])
    duration = _durations(frames, by)
    calls = pd.DataFrame(
        {
            "num_calls": 1,
            "num_ended": has_known_end(comm).astype("int64"),
            "num_timed": is_timed.astype("int64"),
        }
    )
    counts = calls.groupby([steps_of_calls(frames), comm["rank"]]).sum()
    marked = pd.MultiIndex.from_frame(frames.steps[by])
    index = counts.index.union(marked).union(communication.index)
    counts = counts.reindex(index, fill_value=0)
    table = pd.DataFrame(
        {
            "duration_ns": duration.reindex(index, fill_value=NOT_KNOWN),
            "communication_ns": communication.reindex(index, fill_value=0),
            "exposed_ns": exposed.reindex(index, fill_value=0),
            "num_calls": counts["num_calls"],
            "num_untimed": counts["num_calls"] - counts["num_timed"],
        },
        index=index,
    ).rename_axis(by)
    table["unknown_ns"] = table["communication_ns"] - known.reindex(index, fill_value=0)
    rest = table["communication_ns"] - table["exposed_ns"] - table["unknown_ns"]
    table["overlapped_ns"] = rest.clip(lower=0)
    # A call can block its rank after the end of the step that issued it.
    is_timed = table["duration_ns"] >= 0
    table["exposed_ns"] = table["exposed_ns"].clip(upper=table["duration_ns"].where(is_timed))
    makes_calls = counts["num_calls"] > 0
    table.loc[makes_calls & (counts["num_timed"] == 0), ["exposed_ns", "overlapped_ns"]] = NOT_KNOWN
    table.loc[makes_calls & (counts["num_ended"] == 0), ["communication_ns", "unknown_ns"]] = (
        NOT_KNOWN
    )
    for part, total in (("exposed", "duration"), ("overlapped", "communication")):
        of, over = (table[f"{name}_ns"].astype("float64") for name in (part, total))
        table[f"{part}_share"] = of.where(of >= 0) / over.where(over > 0)
    return table.reset_index()


def _in_part(frames: Frames, intervals: pd.DataFrame) -> pd.DataFrame:
    """Clip intervals to the recorded time, if the run is a part of another."""
    if "part" not in frames.run:
        return intervals
    ranks = frames.ranks.set_index("rank")
    begin, end = (
        (ranks[name] - frames.start_ns)
        .where(ranks[name] >= 0)
        .reindex(intervals["rank"])
        .to_numpy()
        for name in ("start_ns", "end_ns")
    )
    clipped = intervals.assign(
        start=np.fmax(intervals["start"], begin), end=np.fmin(intervals["end"], end)
    )
    return clipped[clipped["end"] > clipped["start"]].astype({"start": "int64", "end": "int64"})


def _durations(frames: Frames, by: list[str]) -> pd.Series:
    """Return the known durations of each rank's steps, and of its time outside of them."""
    steps = frames.timed_steps
    inside = steps_ns(frames)[steps.index].groupby([steps[name] for name in by]).sum()
    outside = recorded_ns(frames).sub(inside.groupby("rank").sum(), fill_value=0).clip(lower=0)
    outside.index = pd.MultiIndex.from_product([[-1], outside.index], names=by)
    return pd.concat([inside, outside])


OVERLAP = Analysis(
    "overlap",
    "Exposed and overlapped",
    "How much communication is exposed, and how much overlapped?",
    overlap,
    COLUMNS,
    topic="When",
    shown=(
        "step rank duration_ns communication_ns exposed_ns overlapped_ns "
        "exposed_share overlapped_share unknown_ns num_untimed"
    ),
)
