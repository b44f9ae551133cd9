"""Per-run cache of intermediate results that several analyses share; it is dropped with the run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

from commtrace.analyze.frame import Frames

T = TypeVar("T")


def cached_per_run(function: Callable[[Frames], T]) -> Callable[[Frames], T]:
    """Cache the result of `function` per run; callers share the result and must not modify it."""
    answers: WeakKeyDictionary[Frames, T] = WeakKeyDictionary()

    @functools.wraps(function)
    def answer(frames: Frames) -> T:
        if frames not in answers:
            answers[frames] = function(frames)
        return answers[frames]

    return answer
