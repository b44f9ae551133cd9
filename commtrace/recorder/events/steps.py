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


class FoundSteps:
    """Steps found in a recording, by source, as rows of `found_steps` not yet written."""

    def __init__(self, begin: int, epoch: int) -> None:
        self._begin = begin
        self._epoch = epoch
        self._finders: dict[str, StepFinder] = {}
        self._num_found: dict[str, int] = {}
        self.new: deque[tuple[Any, ...]] = deque()

    def tick(self, source: str, thing: Any, at: int, begin: int) -> None:
        """Receive a call of a source, as `StepFinder.tick` does."""
        finder = self._finders.setdefault(source, StepFinder(self._begin))
        self._keep(source, finder.tick(thing, at, begin))

    def end(self) -> None:
        """Complete the steps; the last call of each source also ends a step."""
        for source, finder in self._finders.items():
            self._keep(source, finder.rest())

    def _keep(self, source: str, span: tuple[int, int] | None) -> None:
        if span is not None:
            number = self._num_found.get(source, 0)
            begin, end = span
            self.new.append((source, _NO_RANK, number, begin + self._epoch, end + self._epoch))
            self._num_found[source] = number + 1
