"""Caches of intermediate results that several analyses share; they are dropped with the run.

A run that is larger than memory is analysed in parts (`parts`), each with all rows of some ranks. A
result is cached

    cached_per_run    for the run or part that it was computed from
    of_run            for the whole run; parts take it from their run
    of_each_call      as a row per call of a part; some calls take it from the parts that have them
    of_each_part      as a table of each part, kept for later passes
    across_ranks      as arrays with an entry for each match of calls, from all parts (`matching`)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from commtrace.analyze.run.frame import Frames

T = TypeVar("T")


def cached_per_run(function: Callable[[Frames], T]) -> Callable[[Frames], T]:
    """Cache the result of `function` per run; callers share the result and must not modify it.

    The run itself has its results, which may refer to it, and go with it.
    """

    @functools.wraps(function)
    def answer(frames: Frames) -> T:
        answers = frames.computed
        if answer not in answers:
            answers[answer] = function(frames)
        return answers[answer]

    return answer


def of_run(function: Callable[[Frames], T]) -> Callable[[Frames], T]:
    """Cache the result of `function` per run; a part returns the result of its run."""
    cached = cached_per_run(function)

    @functools.wraps(function)
    def answer(frames: Frames) -> T:
        return frames.whole.value_of(answer, cached)

    return answer


def of_each_call(function: Callable[[Frames], T]) -> Callable[[Frames], T]:
    """Cache a row per call: `function` returns a Series or a DataFrame by rows of table `comm`."""
    cached = cached_per_run(function)

    @functools.wraps(function)
    def answer(frames: Frames) -> Any:
        return frames.of_each_call(answer, cached)

    return answer


def of_each_part(function: Callable[[Frames], T]) -> Callable[[Frames], T]:
    """Cache a table for each part, which a stored run keeps for later passes.

    It must depend on the events alone, and not on settings.
    """
    cached = cached_per_run(function)

    @functools.wraps(function)
    def answer(frames: Frames) -> Any:
        return frames.of_each_part(answer, cached)

    return answer
