"""Steps of a program that marks none, inferred from functions that training loops call once a step.

Sources, in order of precedence within a run:

    optimizer   `torch.optim.Optimizer.step` has returned, or GradScaler has skipped it
    profiler    `torch.profiler.profile.step`
    scheduler   `step` of an LR scheduler

Several optimizers may make one step: those of a generator and a discriminator, or one per parameter
in a gradient hook. So a step ends with the last call before a repeated one, that is, before an
optimizer steps again that has stepped since the step began.

    calls    D  G   D  G   D  G          W  W  W  W  W V   W          p1 p2 p3   p1 p2 p3
    steps    -----  -----  -----         -  -  -  -  ---   -          --------   --------

The first step begins with the first call of a module, since building a model is not part of it.
Events after the last step belong to none. Gradient accumulation needs no special case: an optimizer
steps once for all of its passes.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler
from torch.profiler import profile

from commtrace.tracefile import STEP_SOURCES

OPTIMIZER, PROFILER, SCHEDULER = STEP_SOURCES

Ticked = Callable[[str, Any], None]
"""Callback that receives a source and the object that has stepped."""


class StepFinder:
    """Finds the steps of one source in one recording; `tick` returns a step once it is certain."""

    def __init__(self, begin: int) -> None:
        self._begin = begin
        self._last = -1
        self._seen: dict[int, weakref.ref[Any]] = {}

    def tick(self, thing: Any, at: int, begin: int) -> tuple[int, int] | None:
        """Note that an object has stepped.

        Args:
            thing: the object that stepped.
            at: time of the call.
            begin: earliest start of the first step.

        Returns:
            Begin and end of the previous step, if this call belongs to a new one; else None.
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
        """Return whether an object has stepped in this step, or has replaced one that is gone."""
        known = self._seen.get(id(thing))
        return known is not None or any(each() is None for each in self._seen.values())

    def rest(self) -> tuple[int, int] | None:
        """Return the step in progress, up to its last call, and begin the next one there."""
        if not self._seen:
            return None
        found = self._begin, self._last
        self._begin = self._last
        self._seen.clear()
        return found


class StepCalls:
    """Reports calls that end steps while installed; optimizers are hooked by `locator`."""

    def __init__(self, ticked: Ticked) -> None:
        self._ticked = ticked
        self._replaced: list[tuple[Any, Any, Any]] = []
        self._num_ticks = 0
        self._nesting = threading.local()

    def optimizer_stepped(self, optimizer: Any) -> None:
        """Report that an optimizer has stepped, outside of another optimizer's step."""
        self._num_ticks += 1
        self._ticked(OPTIMIZER, optimizer)

    def install(self) -> None:
        """Wrap the `step` functions of classes without hooks."""
        self._replace(GradScaler, self._scaling)
        self._replace(profile, self._telling(PROFILER))
        for cls in _schedulers():
            self._replace(cls, self._telling(SCHEDULER))

    def uninstall(self) -> None:
        """Restore the wrapped functions, unless someone has replaced them again since."""
        while self._replaced:
            cls, ours, original = self._replaced.pop()
            if vars(cls).get("step") is ours:
                cls.step = original

    def _replace(self, cls: Any, wrap: Callable[[Any], Any]) -> None:
        original = vars(cls)["step"]
        ours = functools.wraps(original)(wrap(original))
        self._replaced.append((cls, ours, original))
        cls.step = ours

    def _scaling(self, original: Any) -> Any:
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = self._num_ticks
            result = original(scaler, optimizer, *args, **kwargs)
            if self._num_ticks == before:  # gradients were infinite, so the step was skipped
                self.optimizer_stepped(optimizer)
            return result

        return step

    def _telling(self, source: str) -> Callable[[Any], Any]:
        """Return a wrapper that reports calls not nested in another call of this source."""

        def wrap(original: Any) -> Any:
            def step(thing: Any, *args: Any, **kwargs: Any) -> Any:
                depth = getattr(self._nesting, source, 0)
                setattr(self._nesting, source, depth + 1)
                try:
                    result = original(thing, *args, **kwargs)
                finally:
                    setattr(self._nesting, source, depth)
                if not depth and not getattr(thing, "_is_initial", False):
                    self._ticked(source, thing)
                return result

            return step

        return wrap


def _schedulers(cls: Any = LRScheduler) -> Iterator[Any]:
    """Yield the LR scheduler classes that define their own `step`."""
    if "step" in vars(cls):
        yield cls
    for below in cls.__subclasses__():
        yield from _schedulers(below)
