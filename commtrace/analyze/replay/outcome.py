"""Step time of a replay, the figure by which changes are compared.

A step ends when its host has ended it and its kernels have run: those launched in it. If the host
is ahead of its device, a step begins on the device when the one before has ended:

    host      | step 3 | step 4 |
    device       | kernels of 3    | kernels of 4   |
    counts    |      step 3        |     step 4     |
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from commtrace.analyze.measures.steady_steps import is_steady
from commtrace.analyze.replay.graph import KERNEL_END, STEP_BEGIN, STEP_END, Replay
from commtrace.analyze.run.cached_per_run import cached_per_run
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
    table = pd.concat([run.steps.loc[times.index, ["rank", "step"]], times], axis=1)
    if len(run.kernels):
        table = _with_devices(run, replay, table)
    return table[is_steady(run, table["step"])]


def _with_devices(run: Frames, replay: Replay, table: pd.DataFrame) -> pd.DataFrame:
    """Return steps that end with the last of their kernels, and begin no earlier."""
    points = replay.graph.points
    ends = np.flatnonzero(points.sort == KERNEL_END)
    of_kernels = step_rows_of_kernels(run).reindex(points.row[ends]).to_numpy()
    last = pd.Series(replay.time[ends]).groupby(of_kernels).max().reindex(table.index)
    end = np.fmax(table["end"], last)
    table = table.assign(end=end).sort_values(["rank", "begin"], kind="stable")
    before = table.groupby("rank")["end"].shift(1)
    return table.assign(begin=np.fmax(table["begin"], before))


@cached_per_run
def step_rows_of_kernels(run: Frames) -> pd.Series:
    """Return the row in table `steps` in which the host launched each kernel; -1 if unknown."""
    kernels, steps = run.kernels, run.timed_steps
    launch = kernels["launch_ns"].where(kernels["launch_ns"] >= 0, kernels["start_ns"])
    found = pd.Series(-1, index=kernels.index)
    for rank, own in steps.sort_values("start_ns").groupby("rank"):
        mine = launch[kernels["rank"] == rank]
        place = np.searchsorted(own["start_ns"].to_numpy(), mine.to_numpy(), side="right") - 1
        inside = (place >= 0) & (mine.to_numpy() < own["end_ns"].to_numpy()[np.maximum(place, 0)])
        found[mine.index[inside]] = own.index.to_numpy()[place[inside]]
    return found
