"""Step time of a replay, the figure by which changes are compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from commtrace.analyze.measures.steady_steps import is_steady
from commtrace.analyze.replay.graph import STEP_BEGIN, STEP_END, Replay
from commtrace.analyze.run.frame import Frames


_ERROR_OF_MEDIAN = 1.2533 / 1.349
"""Standard error of the median of n normal values, times √n / their interquartile range."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Time of a step.

    Attributes:
        step_ns: Median over steady steps of the mean over ranks; without steps, the time from the
            first to the last point of the run.
        error_ns: Standard error of the median, by the variation between steps; nan with fewer than
            three.
        num_steps: Number of steady steps; 0 without steps.
    """

    step_ns: float
    error_ns: float
    num_steps: int


def step_time(run: Frames, replay: Replay) -> StepTime:
    """Return the time of a step in a replay."""
    steps = steps_of(run, replay)
    lasted = (steps["end"] - steps["begin"]).groupby(steps["step"]).mean()
    if lasted.empty:
        time = replay.time[replay.times.is_reached]
        whole = float(time.max() - time.min()) if len(time) else float("nan")
        return StepTime(whole, float("nan"), 0)
    error = float("nan")
    if len(lasted) >= 3:
        spread = float(np.subtract(*np.percentile(lasted, [75, 25])))
        error = _ERROR_OF_MEDIAN * spread / len(lasted) ** 0.5
    return StepTime(float(lasted.median()), error, len(lasted))


def steps_of(run: Frames, replay: Replay) -> pd.DataFrame:
    """Return `rank step begin end` of the steady steps of each rank in a replay."""
    points = replay.graph.points
    found = {}
    for name, sort in (("begin", STEP_BEGIN), ("end", STEP_END)):
        own = np.flatnonzero(points.sort == sort)
        found[name] = pd.Series(replay.time[own], index=points.row[own])
    times = pd.DataFrame(found).dropna()
    steps = run.steps.loc[times.index, ["rank", "step"]]
    table = pd.concat([steps, times], axis=1)
    return table[is_steady(run, table["step"])]
