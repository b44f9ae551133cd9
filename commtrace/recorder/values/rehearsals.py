"""Rehearsals of pipelines: stages that run once on memory without numbers, to learn its shapes.

The stages of `torch.distributed.pipelining` do so before the first step. Nothing of it is observed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from commtrace.recorder.events.facts import likely_rank
from commtrace.recorder.replaced import Replaced
from commtrace.torch_internals.pipelining import PREPARATIONS, STAGES, stage_classes
from commtrace.when_loaded import when_loaded


class Rehearsals:
    """The ranks that rehearse, while installed."""

    def __init__(self) -> None:
        self._ranks: set[int] = set()
        self._replaced = Replaced()
        self._stop_waiting: Callable[[], None] = lambda: None

    def install(self) -> None:
        """Learn of rehearsals: now, or once the program has loaded pipelines."""
        self._stop_waiting = when_loaded(STAGES, self._replace)

    def uninstall(self) -> None:
        """Restore the replaced functions."""
        self._stop_waiting()
        self._replaced.restore()

    def are_on(self) -> bool:
        """Return whether this rank rehearses."""
        return bool(self._ranks) and likely_rank() in self._ranks

    def _replace(self) -> None:
        for owner in stage_classes(sys.modules[STAGES]):
            for name in PREPARATIONS:
                if name in vars(owner):
                    self._replaced.replace(owner, name, self._noted)

    def _noted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def noted(*args: Any, **kwargs: Any) -> Any:
            rank = likely_rank()
            self._ranks.add(rank)
            try:
                return original(*args, **kwargs)
            finally:
                self._ranks.discard(rank)

        return noted
