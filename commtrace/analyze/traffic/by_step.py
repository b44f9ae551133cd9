"""Communication of each step, and its share of the step's time.

Step -1 contains calls outside of steps: during model construction and weight distribution, and all
calls of a program without steps. A call belongs to the step that issued it; a device can run it in
a later step. Measures are defined in `measures`, as means over ranks, except for the blocked time:
concurrent calls count once, as in table `overlap`, so that its `share` of the step's time is 1 at
most.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.measures.measures import MEASURES, measures, recorded_ns, steps_ns, totals
from commtrace.analyze.overlap.overlap import exposed_of_ranks
from commtrace.analyze.run.analysis import Analysis, typed
from commtrace.analyze.run.frame import Frames
from commtrace.schema import Column

_SHARE = Column("share", float, "1", "blocked time as a fraction of the step's time")
_MEASURES = tuple(
    _SHARE if column.name == "share" else column
    for column in MEASURES
    if column.name not in ("calls_per_step", "share_of_steps")
)

COLUMNS = (
    Column("step", int, "", "number of the step, from 0; -1 outside of steps"),
    Column("duration_ns", float, "ns", "duration; mean over ranks", title="Duration"),
    *_MEASURES,
)


def by_step(frames: Frames) -> pd.DataFrame:
    """Return a row per step, in order; calls outside of steps come first, if there are any."""
    num_ranks = max(frames.num_ranks, 1)
    sums = totals(frames, ["step"])
    timed = frames.timed_steps
    duration = steps_ns(frames)[timed.index].groupby(timed["step"]).sum() / num_ranks
    if -1 in sums.index:
        outside = max(recorded_ns(frames).sum() / num_ranks - duration.sum(), 0.0)
        duration = pd.concat([pd.Series({-1: outside}), duration])
    steps = sums.index.union(duration.index).sort_values()
    table = measures(frames, sums.reindex(steps))
    counts = ["num_calls", "num_untimed"]
    table[counts] = table[counts].fillna(0.0)
    duration = duration.reindex(steps).astype("float64")
    table.insert(0, "duration_ns", duration)
    blocked = pd.concat(frames.by_ranks(_blocked_of_ranks))
    table["blocked_ns"] = blocked.groupby("step").sum(min_count=1).reindex(steps) / num_ranks
    table["share"] = table["blocked_ns"] / duration.where(duration > 0, np.nan)
    table.insert(0, "step", steps)
    return typed(table, COLUMNS)


def _blocked_of_ranks(part: Frames) -> pd.Series:
    """Return the blocked time of some ranks by step and rank; nan if unknown."""
    ranks, comm = exposed_of_ranks(part).set_index(["step", "rank"]), part.comm
    known = ranks["exposed_ns"].where((ranks["exposed_ns"] >= 0) & (ranks["num_calls"] > 0))
    untimed = comm[(comm["issue_ns"] < 0) & (comm["blocked_ns"] >= 0)]
    of_untimed = untimed["blocked_ns"].groupby([untimed["step"], untimed["rank"]]).sum()
    lasted = ranks["duration_ns"].where(ranks["duration_ns"] >= 0)
    blocked = known.astype("float64").add(of_untimed, fill_value=0.0)
    return blocked.clip(upper=lasted.astype("float64"))


BY_STEP = Analysis(
    "by_step",
    "By step",
    "How much of each step is communication?",
    by_step,
    COLUMNS,
    topic="When",
    shown="step duration_ns num_calls payload_bytes wire_bytes blocked_ns share",
)
