"""Causes of wrong predictions: the critical path of the prediction beside the measured run's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.whatif.claims import Claim
from benchmarks.whatif.recorded import AFTER, BEFORE, path_of
from commtrace.analyze import Frames, load
from commtrace.analyze.measures.steady_steps import is_steady
from commtrace.analyze.replay.build import work_graph
from commtrace.analyze.replay.graph import (
    HOST,
    ISSUE,
    QUEUE,
    STEP_BEGIN,
    TRANSFER,
    WAIT,
    WAKE,
    Replay,
    replayed,
)
from commtrace.analyze.replay.longest_path import longest_path
from commtrace.analyze.whatif.asked import what_if

CAUSES = {
    HOST: "host work", ISSUE: "issuing", TRANSFER: "transfers", QUEUE: "transfers",
    WAIT: "waking up", WAKE: "waking up",
}  # fmt: skip
"""Cause of each sort of edge; the others take no time on a host."""
NAMES = tuple(dict.fromkeys(CAUSES.values()))


def residuals(claim: Claim, folder: Path, number: int = 0) -> pd.Series:
    """Return predicted minus measured time per step by cause, in ns, of one round."""
    before, after = (load(path_of(folder, claim, variant, number)) for variant in (BEFORE, AFTER))
    predicted = path_times(before, what_if(before, claim.changes).replay)
    measured = path_times(after, replayed(work_graph(after)))
    return predicted - measured


def path_times(run: Frames, replay: Replay) -> pd.Series:
    """Return the time per step on the critical path of the steady steps by cause, in ns."""
    points, links = replay.graph.points, replay.graph.links
    begins = np.flatnonzero(points.sort == STEP_BEGIN)
    steps = run.steps.loc[points.row[begins], "step"]
    steady = is_steady(run, steps).to_numpy()
    since = replay.time[begins[steady]].min()
    path = longest_path(replay)
    path = path[replay.time[links.source[path]] >= since]
    cause = pd.Series(links.sort[path]).map(CAUSES)
    times = pd.Series(links.length[path]).groupby(cause).sum()
    return times.reindex(NAMES).fillna(0.0) / max(steps[steady].nunique(), 1)
