"""Steps of a recording that keeps every Nth one, if the program marks none.

A found step is certain only once the next has begun (see `steps`), which is too late to begin to
keep it. So its end is predicted: a step is over once as many objects have stepped as in the step
before. The first two steps are kept, since no number is known during the first.

    calls        D  G   D  G   D  G   D  G   D  G        every 4th step
    steps        -0--   -1--   -2--   -3--   -4--
    kept         xxxxxxxxxxx                 xxxx

Every rank decides by these counts alone, so all ranks keep the same steps. Where a prediction was
wrong, a step that was not kept as a whole does not count; the numbers of the steps do not depend
on predictions.
"""

from __future__ import annotations

from typing import Any

from commtrace.recorder.events.steps import FoundSteps, StepSource

_NUM_FIRST = 2
"""Number of steps that are kept in any case."""


class SampledSteps(FoundSteps):
    """Every Nth found step.

    The best source seen so far decides; from the first skipped step on, only its calls count.

    Attributes:
        is_kept: the step in progress is kept, as far as is known.
    """

    def __init__(self, begin: int, epoch: int, every: int) -> None:
        super().__init__(begin, epoch)
        self.is_kept = True
        self._every = every
        # The time that was kept last; it ends with infinity while it lasts.
        self._since, self._until = float("-inf"), float("inf")
        self._has_skipped = False

    def tick(self, source: str, thing: Any, at: int, begin: int) -> None:
        """Receive a call of a source, as `StepFinder.tick` does."""
        if self._has_skipped and source != self._best:
            return
        super().tick(source, thing, at, begin)
        steps = self._sources[source]
        if source == self._best and steps.number:
            self._decide(steps, at)

    def end(self) -> None:
        """Complete the steps; the last call of a source also ends a step."""
        if self._has_skipped:
            self._sources = {self._best: self._sources[self._best]}
        super().end()

    def _decide(self, steps: StepSource, at: int) -> None:
        is_wanted = self._is_wanted(steps.in_progress)
        # A step that has begun unnoticed would lack its beginning.
        if is_wanted != self.is_kept and (steps.is_over or not is_wanted):
            self._keep(is_wanted, at)

    def _is_wanted(self, number: int) -> bool:
        return number < _NUM_FIRST or number % self._every == 0

    def _keep(self, is_kept: bool, at: int) -> None:
        self.is_kept = is_kept
        if is_kept:
            self._since, self._until = at, float("inf")
        else:
            self._until, self._has_skipped = at, True

    def _complete(self, source: str, step: tuple[int, tuple[int, int]] | None) -> None:
        if step is not None:
            number, (begin, end) = step
            if self._is_wanted(number) and self._since <= begin and end <= self._until:
                super()._complete(source, step)
