"""Contenders timed alternately, so that what slows the machine down slows all of them down.

Functions come in, a `Timing` of each goes out. In every round each contender runs for about the
same time, the order turning from round to round; a ratio is taken within a round, and its median
over rounds is what counts.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Contender = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call, a number for each round."""

    rounds: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """The median."""
        return statistics.median(self.rounds)

    def ratio(self, other: Timing) -> float:
        """How many times as long as `other`: the median of the ratios within a round.

        >>> Timing((2.0, 4.0, 100.0)).ratio(Timing((1.0, 2.0, 10.0)))
        2.0
        """
        pairs = zip(self.rounds, other.rounds, strict=True)
        return statistics.median(mine / theirs for mine, theirs in pairs)


def alternate(
    contenders: Mapping[str, Contender],
    *,
    num_rounds: int,
    turn_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """The time of each contender, from `num_rounds` rounds with turns of `turn_s` each."""
    gc.collect()
    counts = {name: _calls_in(call, turn_s, clock) for name, call in contenders.items()}
    found: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    for _ in range(num_rounds):
        for name in order:
            found[name].append(_seconds_per_call(contenders[name], counts[name], clock))
        order = order[1:] + order[:1]
    return {name: Timing(tuple(seconds)) for name, seconds in found.items()}


def _calls_in(call: Contender, turn_s: float, clock: Callable[[], float]) -> int:
    """How many calls fill a turn; finding out warms the contender up."""
    count = 1
    while True:
        took = _seconds_per_call(call, count, clock) * count
        if took >= turn_s / 4:
            return max(1, round(count * turn_s / took))
        count *= 4


def _seconds_per_call(call: Contender, count: int, clock: Callable[[], float]) -> float:
    gc.disable()
    try:
        start = clock()
        for _ in range(count):
            call()
        return (clock() - start) / count
    finally:
        gc.enable()
