"""Steps that take longer and longer.

Kendall's tau of the steps' durations in their order tells a trend from noise and from a single
jump: it is 1 if each step is longer than all before it, and about a half if all steps of the second
half are longer than all in the first.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.findings.finding import Finding, Rule, Selected, calls_in, selected
from commtrace.analyze.findings.needs import DURATION, STEPS
from commtrace.analyze.measures.measures import summed
from commtrace.analyze.measures.steady_steps import is_steady
from commtrace.analyze.run.cached_per_run import of_run
from commtrace.analyze.run.frame import Frames
from commtrace.units import text_of_duration

_LEAST_STEPS = 20
"""Least number of steady steps: of fewer, chance makes trends."""
_LEAST_TAU = 0.7
"""Least tau: a single jump has half, and 20 steps of no trend have 0.7 in one of 100,000 runs."""
_MOST_BINS = 100
"""Number of medians that a tau is of at most; each pair of them is compared."""
_PARTS = 4


def growing_steps(frames: Frames) -> list[Finding]:
    """Steady steps whose durations grow by a large part from the first to the last quarter."""
    lasts = _durations(frames)
    if len(lasts) < _LEAST_STEPS or _tau(lasts.to_numpy()) < _LEAST_TAU:
        return []
    first, last = _ends(lasts)
    if first <= 0 or last < (1 + frames.settings.threshold("growth_share")) * first:
        return []
    more = float(lasts.sum() - first * len(lasts))
    return [
        Finding(
            f"Steps take longer and longer: {text_of_duration(first)} in the first quarter of "
            f"{len(lasts)} steady steps, {text_of_duration(last)} in the last"
            f"{_because(frames, lasts, last - first)}. At the pace of the first quarter all would "
            f"have taken {text_of_duration(more)} less "
            f"({more / lasts.sum():.0%}).",
            "Find what grows with the number of steps: a list of losses or outputs that are not "
            "detached and keep their graphs, logs and caches, or the samples themselves, if they "
            "become longer. `commtrace table RUN by_step` has the times of each step.",
            calls,
        )
        for _, calls in selected(frames, _last_calls)
    ]


@of_run
def _durations(frames: Frames) -> pd.Series:
    """Return the durations of steady steps, mean over ranks, by their numbers."""
    steps = frames.timed_steps
    steps = steps[is_steady(frames, steps["step"])]
    lasted = (steps["end_ns"] - steps["start_ns"]).clip(lower=0).astype("float64")
    return lasted.groupby(steps["step"]).mean().sort_index()


def _tau(lasts: np.ndarray) -> float:
    """Return Kendall's tau of durations, or of medians of as many in a row, in their order."""
    bins = np.array_split(lasts, min(len(lasts), _MOST_BINS))
    medians = np.array([np.median(own) for own in bins])
    later, earlier = np.tril_indices(len(medians), -1)
    return float(np.sign(medians[later] - medians[earlier]).mean())


def _ends(values: pd.Series) -> tuple[float, float]:
    """Return the medians of the first and of the last quarter."""
    num = len(values) // _PARTS
    return float(values.iloc[:num].median()), float(values.iloc[-num:].median())


def _because(frames: Frames, lasts: pd.Series, growth: float) -> str:
    """Name the part of the growth that is time blocked by communication, and further calls."""
    sums = summed(frames.by_ranks(_of_steps)).reindex(lasts.index)
    num_first, num_last = _ends(sums["calls"].fillna(0) / max(frames.num_ranks, 1))
    grown = f"; its calls grow from {num_first:g} to {num_last:g}" if num_last > num_first else ""
    if sums["unknown"].any():
        return grown
    first, last = _ends(sums["blocked"].fillna(0) / max(frames.num_ranks, 1))
    part = min(max((last - first) / growth, 0), 1)
    return f"; {part:.0%} of the growth is time blocked by communication{grown}"


def _of_steps(part: Frames) -> pd.DataFrame:
    """Return number of calls, blocked time and number of calls of unknown time of each step."""
    comm = part.comm[part.comm["step"] >= 0]
    blocked = comm["blocked_ns"]
    columns = {"calls": 1.0, "blocked": blocked.clip(lower=0), "unknown": blocked < 0}
    table = pd.DataFrame(columns, comm.index).astype("float64")
    return table.groupby(comm["step"]).sum()


def _last_calls(part: Frames) -> Selected:
    """Return the calls of the last quarter of the steady steps."""
    lasts = _durations(part)
    rows = part.comm[part.comm["step"].isin(lasts.index[-(len(lasts) // _PARTS) :])]
    return {"": calls_in(part, rows, cost_bytes=0.0)} if len(rows) else {}


GROWING_STEPS = Rule(
    "growing_steps",
    "steps that take longer and longer",
    growing_steps,
    (STEPS, DURATION),
)
