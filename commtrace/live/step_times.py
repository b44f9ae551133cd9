"""Durations of the last steps of all ranks, and their trend.

All ranks use the same source of steps, as in a finished trace: marked steps, or else the first of
`STEP_SOURCES` that any rank has. The duration of a step is the median over its ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

import pandas as pd

from commtrace.analyze.measures.steady_steps import long_steps
from commtrace.tracefile.spool import STEP_SOURCES

MOST_STEPS = 120
"""Number of steps that are kept."""
NUM_RECENT = 10
"""Number of steps that make the present rate."""
MARKED = ""
_ORDER = {source: place for place, source in enumerate((MARKED, *STEP_SOURCES))}


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Rate of steps.

    Attributes:
        step: number of the last step that ended; -1 if none has.
        source: source of the steps; empty if the program marks them.
        per_s: steps per second, over the steady steps among the last `NUM_RECENT` (see
            `analyze.measures.steady_steps`); nan if there are none.
        change: relative change of duration against the steps before; nan without these.
        durations_s: duration of the last steps, the latest last.
    """

    step: int = -1
    source: str = MARKED
    per_s: float = float("nan")
    change: float = float("nan")
    durations_s: tuple[float, ...] = ()


class Steps:
    """Collects the steps of ranks."""

    def __init__(self) -> None:
        self._source: int | None = None
        self._durations: dict[int, dict[int, float]] = {}
        self._last_of_rank: dict[int, int] = {}

    def add(self, rank: int, steps: Iterable[tuple[str, int, int, int]]) -> None:
        """Add steps of a rank: source, number, begin and end."""
        for source, step, begin_ns, end_ns in steps:
            place = _ORDER.get(source)
            if place is None or step < 0 or begin_ns < 0 or end_ns < begin_ns:
                continue
            if self._source is None or place < self._source:
                self._source = place
                self._durations.clear()
                self._last_of_rank.clear()
            if place == self._source:
                # Moved to the end: the most recently updated steps are kept.
                self._durations[step] = of_step = self._durations.pop(step, {})
                of_step[rank] = (end_ns - begin_ns) / 1e9
                self._last_of_rank[rank] = max(self._last_of_rank.get(rank, -1), step)
        if len(self._durations) > MOST_STEPS:
            for stale in list(self._durations)[:-MOST_STEPS]:
                del self._durations[stale]

    def forget(self, rank: int) -> None:
        """Forget the steps of a restarted rank, and their source if no steps are left."""
        self._last_of_rank.pop(rank, None)
        for of_rank in self._durations.values():
            of_rank.pop(rank, None)
        self._durations = {step: each for step, each in self._durations.items() if each}
        self._source = self._source if self._durations else None

    def last_of(self, rank: int) -> int:
        """Return the last step that a rank has ended; -1 if it has none."""
        return self._last_of_rank.get(rank, -1)

    def duration_of_last(self, rank: int) -> float:
        """Return the duration of the last step that a rank has ended; nan if unknown."""
        return self._durations.get(self.last_of(rank), {}).get(rank, float("nan"))

    def times(self) -> StepTimes:
        """Return the rate of steps and its trend."""
        steps = sorted(self._durations)
        if not steps:
            return StepTimes()
        durations = [median(self._durations[step].values()) for step in steps]
        recent, before = durations[-NUM_RECENT:], durations[-3 * NUM_RECENT : -NUM_RECENT]
        too_long = long_steps(pd.Series(durations, index=steps))
        steady = [
            lasts
            for step, lasts in zip(steps[-NUM_RECENT:], recent, strict=True)
            if step not in too_long
        ]
        mean = sum(steady) / len(steady) if steady else 0.0
        usual = median(before) if len(before) >= NUM_RECENT else float("nan")
        return StepTimes(
            step=steps[-1],
            source=[*_ORDER][self._source or 0],
            per_s=1 / mean if mean > 0 else float("nan"),
            change=median(recent) / usual - 1 if usual and usual > 0 else float("nan"),
            durations_s=tuple(durations),
        )
