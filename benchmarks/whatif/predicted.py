"""Predictions of `what_if` beside what the changed programs took."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.whatif.claims import Claim
from benchmarks.whatif.recorded import AFTER, BEFORE, path_of
from commtrace.analyze import Frames, load
from commtrace.analyze.measures.steady_steps import is_steady
from commtrace.analyze.replay.prediction import Prediction
from commtrace.analyze.whatif.asked import what_if

MOST_ERROR = 0.05
"""Bar: part of the measured step time by which a prediction may be wrong."""
TIMES_NOISE = 2.0
"""Bar, where recordings of the same program differ by more."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A claim, and its step times in ns, one of each round.

    Attributes:
        claim: The claim.
        before: Measured with the cost.
        after: Measured without it.
        least, most: Predicted; they differ if a latency is unknown.
        naive: `before` without the blocked time of the changed calls.
    """

    claim: Claim
    before: tuple[float, ...]
    after: tuple[float, ...]
    least: tuple[float, ...]
    most: tuple[float, ...]
    naive: tuple[float, ...]

    @property
    def measured(self) -> float:
        """Median step time without the cost."""
        return statistics.median(self.after)

    @property
    def noise(self) -> float:
        """Relative variation of measured step times between rounds, of either program."""
        return max(_variation(self.before), _variation(self.after))

    @property
    def error(self) -> float:
        """Relative error of the prediction, 0 within its range."""
        least, most = statistics.median(self.least), statistics.median(self.most)
        nearest = min(max(self.measured, least), most)
        return abs(nearest - self.measured) / self.measured

    @property
    def signed_error(self) -> float:
        """Relative error of the middle of the prediction; above 0 if it promises too little."""
        middle = (statistics.median(self.least) + statistics.median(self.most)) / 2
        return middle / self.measured - 1

    @property
    def naive_error(self) -> float:
        """Relative error of the naive estimate."""
        return abs(statistics.median(self.naive) - self.measured) / self.measured

    @property
    def is_kept(self) -> bool:
        """True if the error is within the bar."""
        return self.error <= max(MOST_ERROR, TIMES_NOISE * self.noise)


def _variation(values: Sequence[float]) -> float:
    """Return the standard deviation of a median of values, relative to it, by their quartiles."""
    if len(values) < 2:
        return 0.0
    spread = float(np.subtract(*np.percentile(values, [75, 25])))
    return spread / 1.349 / statistics.median(values)


def checked(claim: Claim, folder: Path, num_rounds: int) -> Checked:
    """Return a claim with its predictions and measurements, from recordings in a folder."""
    rows = []
    for number in range(num_rounds):
        before, after = (
            load(path_of(folder, claim, variant, number)) for variant in (BEFORE, AFTER)
        )
        answer = what_if(before, claim.changes)
        step = measured_ns(before)
        naive = step - claim.blocked * blocked_ns(answer)
        rows.append((step, measured_ns(after), *sorted(answer.after), naive))
    return Checked(claim, *map(tuple, zip(*rows, strict=True)))


def measured_ns(run: Frames) -> float:
    """Return the median over steady steps of their mean time over ranks, from table `steps`."""
    steps = run.timed_steps
    steps = steps[is_steady(run, steps["step"])]
    return float((steps["end_ns"] - steps["start_ns"]).groupby(steps["step"]).mean().median())


def blocked_ns(answer: Prediction) -> float:
    """Return the blocked time of the changed calls and their matches: per step, mean over ranks."""
    run, rows = answer.basis, answer.changed.rows
    comm = run.comm
    match = answer.changed.graph.calls["match"]
    own = match.index[(match >= 0) & match.isin(match.reindex(rows))]
    steps = run.timed_steps
    num = int(is_steady(run, steps["step"]).sum())
    blocked = comm["blocked_ns"].loc[own].where(is_steady(run, comm["step"].loc[own]), 0)
    return float(blocked.clip(lower=0).sum() / max(num, 1))
