"""Step time of a replay, the figure by which changes are compared.

A step ends when its host has ended it and its kernels have run: those launched in it. If the host
is ahead of its device, a step begins on the device when the one before has ended:

    host      | step 3 | step 4 |
    device       | kernels of 3    | kernels of 4   |
    counts    |      step 3        |     step 4     |
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from commtrace.analyze.measures.steady_steps import is_steady
from commtrace.analyze.replay.graph import KERNEL_END, LONG_AGO, STEP_BEGIN, STEP_END, Replay
from commtrace.analyze.run.cached_per_run import cached_per_run
from commtrace.analyze.run.frame import Frames

NO_STEP = -1
LEAST_SHARE = 0.001
"""Part of a step from which on a saving is worth naming, and two savings differ."""
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of changes for a step.

    Attributes:
        before: Step time without them.
        saved_ns: Time of a step that they save: at least, and at most; below 0 if they cost.
        num_calls: Number of calls of all ranks that are changed.
        num_unknown: Number of calls that are left alone for lack of data.
    """

    before: StepTime
    saved_ns: tuple[float, float]
    num_calls: int
    num_unknown: int


def step_lengths(run: Frames, replay: Replay) -> pd.Series:
    """Return the mean over ranks of the length of each step in a replay, in ns, by its number.

    Without steady steps, it is the time from the first to the last point, as the only row.
    """
    steps = steps_of(run, replay)
    if is_steady(run, steps["step"]).any():
        return (steps["end"] - steps["begin"]).groupby(steps["step"]).mean()
    # Nothing leads to the meeting of a removed call.
    time = replay.time[replay.times.is_reached & (replay.time > LONG_AGO // 2)]
    return pd.Series([float(time.max() - time.min()) if len(time) else math.nan], index=[NO_STEP])


def step_time(run: Frames, lengths: pd.Series) -> StepTime:
    """Return the time of a step by the lengths of all steps."""
    steady = lengths[is_steady(run, lengths.index.to_series())]
    if steady.empty:
        return StepTime(float(lengths.iloc[0]), math.nan, 0)
    error = math.nan
    if len(steady) >= 3:
        spread = float(np.subtract(*np.percentile(steady, [75, 25])))
        error = _ERROR_OF_MEDIAN * spread / len(steady) ** 0.5
    return StepTime(float(steady.median()), error, len(steady))


def steps_of(run: Frames, replay: Replay) -> pd.DataFrame:
    """Return `rank step begin end` of the steps of each rank in a replay."""
    points = replay.graph.points
    found = {}
    for name, sort in (("begin", STEP_BEGIN), ("end", STEP_END)):
        own = np.flatnonzero(points.sort == sort)
        found[name] = pd.Series(replay.time[own], index=points.row[own])
    times = pd.DataFrame(found).dropna()
    table = pd.concat([run.steps.loc[times.index, ["rank", "step"]], times], axis=1)
    if len(run.kernels):
        table = _with_devices(run, replay, table)
    return table


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
