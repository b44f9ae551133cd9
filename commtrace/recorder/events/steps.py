"""Steps of a program that marks none, inferred from functions that training loops call once a step.

Several optimizers may share a step: a generator's and a discriminator's, or one per parameter in a
gradient hook. So a step ends with the last call before a repeated call, that is, before an
optimizer that has stepped since the step began steps again.

    calls    D  G   D  G   D  G          W  W  W  W  W V   W          p1 p2 p3   p1 p2 p3
    steps    -----  -----  -----         -  -  -  -  ---   -          --------   --------

The first step begins with the first call of a module, since building a model is not part of it.
Events after the last step belong to none. Gradient accumulation needs no special case: an optimizer
steps once for all of its passes.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

from commtrace.tracefile import STEP_SOURCES

OPTIMIZER, PROFILER, SCHEDULER = STEP_SOURCES
"""Sources of steps, in order of precedence within a run (see `attribution.step_calls`)."""

_NO_RANK = -1


class StepFinder:
    """Finds the steps of a source in a recording; `tick` returns a step once it is certain."""

    def __init__(self, begin: int) -> None:
        self._begin = begin
        self._last = -1
        self._seen: dict[int, weakref.ref[Any]] = {}

    @property
    def num_seen(self) -> int:
        """Number of objects that have stepped in the step in progress."""
        return len(self._seen)

    def tick(self, thing: Any, at: int, begin: int) -> tuple[int, int] | None:
        """Note that an object has stepped.

        Args:
            thing: the object that stepped.
            at: time of the call.
            begin: earliest start of the first step.

        Returns:
            Begin and end of the previous step, if this call begins a new step; else None.
        """
        found = None
        if self._last < 0:
            self._begin = max(self._begin, min(begin, at))
        elif self._is_again(thing):
            found = self.rest()
        self._seen[id(thing)] = weakref.ref(thing)
        self._last = at
        return found

    def _is_again(self, thing: Any) -> bool:
        """Return whether an object has stepped in this step, or has replaced a dead object."""
        known = self._seen.get(id(thing))
        return known is not None or any(each() is None for each in self._seen.values())

    def rest(self) -> tuple[int, int] | None:
        """Return the step in progress, up to its last call, and begin the next there."""
        if not self._seen:
            return None
        found = self._begin, self._last
        self._begin = self._last
        self._seen.clear()
        return found


class StepSource:
    """Steps of a source, which are numbered.

    Attributes:
        number: number of the step in progress, until it is certain that the next has begun.
    """

    def __init__(self, begin: int) -> None:
        self._finder = StepFinder(begin)
        self._size = 0
        self.number = 0

    @property
    def is_over(self) -> bool:
        """True if the step in progress is predicted to be over.

        It is once as many objects have stepped as in the step before; none is known in the first.
        """
        return 0 < self._size <= self._finder.num_seen

    @property
    def in_progress(self) -> int:
        """Number of the step in progress, as predicted."""
        return self.number + self.is_over

    def tick(self, thing: Any, at: int, begin: int) -> tuple[int, tuple[int, int]] | None:
        """Receive a call; return the number and the span of the step that ended before it."""
        num_seen = self._finder.num_seen
        return self._numbered(self._finder.tick(thing, at, begin), num_seen)

    def rest(self) -> tuple[int, tuple[int, int]] | None:
        """Return the number and the span of the step in progress, up to its last call."""
        return self._numbered(self._finder.rest(), self._size)

    def _numbered(
        self, span: tuple[int, int] | None, size: int
    ) -> tuple[int, tuple[int, int]] | None:
        """Return the number of a step that has ended, with its span; begin the next."""
        if span is None:
            return None
        self._size = size
        self.number += 1
        return self.number - 1, span


class FoundSteps:
    """Steps found in a recording, by source, as rows of `found_steps` not yet written.

    Attributes:
        new: rows not yet written.
    """

    def __init__(self, begin: int, epoch: int) -> None:
        self.new: deque[tuple[Any, ...]] = deque()
        self._begin = begin
        self._epoch = epoch
        self._sources: dict[str, StepSource] = {}
        self._best = ""

    @property
    def in_progress(self) -> int:
        """Number of the step in progress, as the best source so far predicts it."""
        return self._sources[self._best].in_progress if self._best else 0

    def tick(self, source: str, thing: Any, at: int, begin: int) -> None:
        """Receive a call of a source, as `StepFinder.tick` does."""
        if not self._best or STEP_SOURCES.index(source) < STEP_SOURCES.index(self._best):
            self._best = source
        steps = self._sources.setdefault(source, StepSource(self._begin))
        self._complete(source, steps.tick(thing, at, begin))

    def end(self) -> None:
        """Complete the steps; the last call of each source also ends a step."""
        for source, steps in self._sources.items():
            self._complete(source, steps.rest())

    def _complete(self, source: str, step: tuple[int, tuple[int, int]] | None) -> None:
        if step is not None:
            number, (begin, end) = step
            self.new.append((source, _NO_RANK, number, begin + self._epoch, end + self._epoch))
