"""Steady steps: the basis of shares of the steps' time, counts per step and bounds of tests.

The first step compiles, allocates and starts the ranks one by one, and can take as long as all
others. It is left out if it takes `FACTOR` times the median of the others, and so is a single other
step that takes `FACTOR` times the median of at least three. Longer steps that recur are steady;
so is every step of a part of a run that was asked for (`--steps`, `--window`). The duration of a
step is the mean over ranks.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from commtrace.analyze.run.cached_per_run import cached_per_run
from commtrace.analyze.run.frame import Frames

FACTOR = 2.0
"""Multiple of the median from which a step is left out."""


def left_out(frames: Frames) -> Mapping[int, float]:
    """Return the steps that are not steady, each with its duration as a multiple of the median."""
    return _left_out(frames.whole)


@cached_per_run
def _left_out(frames: Frames) -> Mapping[int, float]:
    steps = frames.timed_steps
    if "part" in frames.run or steps.empty:
        return {}
    lasted = (steps["end_ns"] - steps["start_ns"]).astype("float64").clip(lower=0)
    return long_steps(lasted.groupby(steps["step"]).mean().sort_index())


def long_steps(lasts: pd.Series) -> dict[int, float]:
    """Return the steps that take too long, each as a multiple of the median of the others.

    Args:
        lasts: Durations of all steps in order, by their numbers.
    """
    others = lasts.iloc[1:]
    if not others.median() > 0:
        return {}
    first = lasts.iloc[:1] / others.median()
    later = others / others.median()
    later = later[later >= FACTOR] if len(others) > 2 else later[:0]
    found = pd.concat([first[first >= FACTOR], later if len(later) == 1 else later[:0]])
    return {int(str(step)): float(ratio) for step, ratio in found.items()}


def is_steady(frames: Frames, step: pd.Series) -> pd.Series:
    """Return a mask of the numbers of steps that are steady; -1, outside of steps, is not."""
    return (step >= 0) & ~step.isin(left_out(frames).keys())


def is_counted(frames: Frames, step: pd.Series) -> pd.Series:
    """Return a mask of the numbers of steps that are not left out, among them -1, of none."""
    return ~step.isin(left_out(frames).keys())


def left_out_text(frames: Frames) -> str:
    """Describe the steps that are left out: `step 0 left out: 14 x the median`; "" if none is."""
    return ", ".join(
        f"step {step} left out: {ratio:.2g} × the median"
        for step, ratio in left_out(frames).items()
    )
