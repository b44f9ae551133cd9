"""What several analyses ask of the same run is computed once, and forgotten with the run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

from commtrace.analyze.frame import Frames

T = TypeVar("T")


def once(function: Callable[[Frames], T]) -> Callable[[Frames], T]:
    """`function`, which gives the same object again for the same run: change it nowhere."""
    answers: WeakKeyDictionary[Frames, T] = WeakKeyDictionary()

    @functools.wraps(function)
    def answer(frames: Frames) -> T:
        if frames not in answers:
            answers[frames] = function(frames)
        return answers[frames]

    return answer
