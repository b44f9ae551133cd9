"""Calls that training loops make once a step, reported so that steps can be found.

Sources, in order of precedence within a run:

    optimizer   `torch.optim.Optimizer.step` has returned, or GradScaler has skipped it
    profiler    `torch.profiler.profile.step`
    scheduler   `step` of an LR scheduler
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler
from torch.profiler import profile

from commtrace.recorder.events.steps import OPTIMIZER, PROFILER, SCHEDULER
from commtrace.recorder.replaced import Replaced

Ticked = Callable[[str, Any], None]
"""Callback that receives a source and the object that has stepped."""


class StepCalls:
    """Reports calls that end steps while installed; optimizers are hooked by `locator`."""

    def __init__(self, ticked: Ticked) -> None:
        self._ticked = ticked
        self._replaced = Replaced()
        self._num_ticks = 0
        self._nesting = threading.local()

    def optimizer_stepped(self, optimizer: Any) -> None:
        """Report that an optimizer has stepped, outside of another optimizer's step."""
        self._num_ticks += 1
        self._ticked(OPTIMIZER, optimizer)

    def install(self) -> None:
        """Wrap the `step` functions of classes without hooks."""
        self._replace(GradScaler, self._scaling)
        self._replace(profile, self._reporting(PROFILER))
        for cls in _schedulers():
            self._replace(cls, self._reporting(SCHEDULER))

    def uninstall(self) -> None:
        """Restore the wrapped functions, unless someone has replaced them again since."""
        self._replaced.restore()

    def _replace(self, cls: Any, wrap: Callable[[Any], Any]) -> None:
        self._replaced.replace(cls, "step", lambda step: functools.wraps(step)(wrap(step)))

    def _scaling(self, original: Any) -> Any:
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = self._num_ticks
            result = original(scaler, optimizer, *args, **kwargs)
            if self._num_ticks == before:  # gradients were infinite, so the step was skipped
                self.optimizer_stepped(optimizer)
            return result

        return step

    def _reporting(self, source: str) -> Callable[[Any], Any]:
        """Return a wrapper that reports calls not nested in another call of this source."""

        def wrap(original: Any) -> Any:
            def step(thing: Any, *args: Any, **kwargs: Any) -> Any:
                depth = getattr(self._nesting, source, 0)
                setattr(self._nesting, source, depth + 1)
                try:
                    result = original(thing, *args, **kwargs)
                finally:
                    setattr(self._nesting, source, depth)
                # The constructor of a scheduler calls `step` as well.
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
