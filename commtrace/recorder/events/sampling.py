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

from collections import deque
from typing import Any

from commtrace.recorder.events.steps import StepFinder
from commtrace.tracefile import STEP_SOURCES

_NO_RANK = -1
_NUM_FIRST = 2
"""Number of steps that are kept in any case."""


class _Source:
    """Steps of a source: the number in progress, and the number of objects in the step before."""

    def __init__(self, begin: int) -> None:
        self._finder = StepFinder(begin)
        self._size = 0
        self.number = 0

    @property
    def is_predictable(self) -> bool:
        """True once a step has ended, whose number of objects is then known."""
        return self._size > 0

    @property
    def is_over(self) -> bool:
        """Return whether the step in progress is predicted to be over."""
        return self._finder.num_seen >= self._size

    def tick(self, thing: Any, at: int, begin: int) -> tuple[int, tuple[int, int]] | None:
        """Receive a call; return the number and the span of the step that ended before it."""
        num_seen = self._finder.num_seen
        span = self._finder.tick(thing, at, begin)
        if span is None:
            return None
        self._size = num_seen
        self.number += 1
        return self.number - 1, span

    def rest(self) -> tuple[int, tuple[int, int]] | None:
        """Return the number and the span of the step in progress, up to its last call."""
        span = self._finder.rest()
        return span and (self.number, span)


class SampledSteps:
    """Every Nth found step, as rows of `found_steps` not yet written; compare `FoundSteps`.

    The best source seen so far decides; from the first skipped step on, only its calls count.

    Attributes:
        is_kept: the step in progress is kept, as far as is known.
        new: rows not yet written.
    """

    def __init__(self, begin: int, epoch: int, every: int) -> None:
        self.is_kept = True
        self.new: deque[tuple[Any, ...]] = deque()
        self._begin = begin
        self._epoch = epoch
        self._every = every
        self._sources: dict[str, _Source] = {}
        self._decisive = ""
        # The time that was kept last; it ends with infinity while it lasts.
        self._since, self._until = float("-inf"), float("inf")
        self._has_skipped = False

    def tick(self, source: str, thing: Any, at: int, begin: int) -> None:
        """Receive a call of a source, as `StepFinder.tick` does."""
        if self._has_skipped:
            if source != self._decisive:
                return
        elif not self._decisive or _precedence(source) < _precedence(self._decisive):
            self._decisive = source
        steps = self._sources.setdefault(source, _Source(self._begin))
        self._complete(source, steps.tick(thing, at, begin))
        if source == self._decisive and steps.is_predictable:
            self._decide(steps, at)

    def end(self) -> None:
        """Complete the steps; the last call of a source also ends a step."""
        for source, steps in self._sources.items():
            if source == self._decisive or not self._has_skipped:
                self._complete(source, steps.rest())

    def _decide(self, steps: _Source, at: int) -> None:
        is_wanted = self._is_wanted(steps.number + steps.is_over)
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
        if step is None:
            return
        number, (begin, end) = step
        if self._is_wanted(number) and self._since <= begin and end <= self._until:
            epoch = self._epoch
            self.new.append((source, _NO_RANK, number, begin + epoch, end + epoch))


def _precedence(source: str) -> int:
    return STEP_SOURCES.index(source)
