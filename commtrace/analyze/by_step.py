"""Communication of each step, and its share of the step's time.

Step -1 contains calls outside of steps: during model construction and weight distribution, and all
calls of a program without steps. A call belongs to the step that issued it; a device can run it in
a later one, in which table `overlap` counts its time. The measures are those of `measures`, as
means over ranks, except that `share` refers to the step's time.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.analysis import Analysis, typed
from commtrace.analyze.frame import Frames
from commtrace.analyze.measures import MEASURES, measures, recorded_ns, steps_ns, totals
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
    """Return one row per step, in order; calls outside of steps come first, if there are any."""
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
    table["share"] = table["blocked_ns"] / duration.where(duration > 0, np.nan)
    table.insert(0, "step", steps)
    return typed(table, COLUMNS)


BY_STEP = Analysis(
    "by_step",
    "By step",
    "How much of each step is communication?",
    by_step,
    COLUMNS,
    topic="When",
    shown="step duration_ns num_calls payload_bytes wire_bytes blocked_ns share",
)
