"""Time in which each rank computes and no call of it is in flight: there, a call could be hidden.

A rank computes while operators run, if they were recorded; otherwise whenever it is recorded.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.measures.covered_time import CoveredTime
from commtrace.analyze.measures.intervals import merged, spans, without
from commtrace.analyze.measures.unrecorded import unrecorded
from commtrace.analyze.run.cached_per_run import cached_per_run
from commtrace.analyze.run.frame import Frames

_BY = ["rank"]


@cached_per_run
def free_time(frames: Frames) -> CoveredTime:
    """Return this time of the ranks of a part, in ns since the start of the run."""
    free = without(_computing(frames), merged(spans(frames), _BY))
    return CoveredTime(free["rank"], free["start"], free["end"])


def _computing(frames: Frames) -> pd.DataFrame:
    """Return `rank start end` of the time in which ranks compute."""
    ops = frames.ops
    ops = ops[(ops["parent"] < 0) & (ops["start_ns"] >= 0) & (ops["duration_ns"] > 0)]
    start = ops["start_ns"] - frames.start_ns
    ran = pd.DataFrame({"rank": ops["rank"], "start": start, "end": start + ops["duration_ns"]})
    comm = frames.comm
    others = pd.Index(comm["rank"].unique()).difference(ops["rank"].unique())
    whole = pd.DataFrame({"rank": others, "start": 0, "end": np.iinfo("int64").max // 2})
    # The rest of their time, without the steps that were not recorded.
    whole = without(whole.astype("int64"), unrecorded(frames))
    return pd.concat([merged(ran, _BY), whole], ignore_index=True).astype("int64")
