"""Caches of intermediate results that several analyses share; they are dropped with the run.

A run that is larger than memory is analysed in parts (`parts`), each with all rows of some ranks or
all calls of some collectives. A result is cached

    cached_per_run                  for the run or part that it was computed from
    of_run                          for the whole run; parts take it from their run
    of_each_call(OF_RANKS)          as a row per call, from parts with all calls of a rank
    of_each_call(OF_COLLECTIVES)    as a row per call, from parts with all members' calls
    of_each_part                    as a table of each part, kept for later passes

A part of the other sort takes the rows of its calls from those that its run has stored.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from commtrace.analyze.frame import Frames

T = TypeVar("T")

OF_RANKS, OF_COLLECTIVES = "ranks", "collectives"
"""Sorts of parts: all calls of a rank, or all calls of a collective and both ends of a transfer."""


def cached_per_run(function: Callable[[Frames], T]) -> Callable[[Frames], T]:
    """Cache the result of `function` per run; callers share the result and must not modify it."""
    answers: WeakKeyDictionary[Frames, T] = WeakKeyDictionary()

    @functools.wraps(function)
    def answer(frames: Frames) -> T:
        if frames not in answers:
            answers[frames] = function(frames)
        return answers[frames]

    return answer


def of_run(function: Callable[[Frames], T]) -> Callable[[Frames], T]:
    """Cache the result of `function` per run; a part returns the result of its run."""
    cached = cached_per_run(function)

    @functools.wraps(function)
    def answer(frames: Frames) -> T:
        return frames.whole.value_of(answer, cached)

    return answer


def of_each_call(sort: str) -> Callable[[Callable[[Frames], T]], Callable[[Frames], T]]:
    """Cache a row per call: `function` returns a Series or a DataFrame by rows of table `comm`.

    Args:
        sort: Sort of the parts from which it can be computed, `OF_RANKS` or `OF_COLLECTIVES`.
    """

    def decorate(function: Callable[[Frames], T]) -> Callable[[Frames], T]:
        cached = cached_per_run(function)

        @functools.wraps(function)
        def answer(frames: Frames) -> Any:
            return frames.of_each_call(answer, cached)

        answer.__dict__["sort"] = sort
        return answer

    return decorate


def of_each_part(function: Callable[[Frames], T]) -> Callable[[Frames], T]:
    """Cache a table for each part of a sort, which a stored run keeps for later passes.

    It must depend on the events alone, and not on settings.
    """
    cached = cached_per_run(function)

    @functools.wraps(function)
    def answer(frames: Frames) -> Any:
        return frames.of_each_part(answer, cached)

    return answer


def sort_of(answer: Callable[..., Any]) -> str | None:
    """Return the sort of parts that compute a row per call; None of a value of the whole run."""
    return getattr(answer, "sort", None)
