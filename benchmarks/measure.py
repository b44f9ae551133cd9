"""Contenders timed alternately, so that what slows the machine down slows all of them down.

Functions come in, numbers a round come out. In every round each contender runs for about the same
time, the order turning from round to round; a ratio is taken within a round, and its median over
rounds is what counts. Rounds are short and many, so a disturbance spoils few of them, and the clock
counts the processor's time for this process: what others run on the machine is left out.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from resource import getpagesize

Contender = Callable[[], object]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds per call, or bytes per object, a number for each round."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median."""
        return statistics.median(self.rounds)

    def ratio(self, other: Figures) -> float:
        """How many times as much as `other`: the median of the ratios within a round.

        >>> Figures((2.0, 4.0, 100.0)).ratio(Figures((1.0, 2.0, 10.0)))
        2.0
        """
        pairs = zip(self.rounds, other.rounds, strict=True)
        return statistics.median(mine / theirs for mine, theirs in pairs)


def repeated(
    contenders: Mapping[str, Contender],
    *,
    num_rounds: int,
    turn_s: float,
    clock: Clock = time.process_time,
) -> dict[str, Figures]:
    """Seconds per call of each contender, from turns of about `turn_s`."""
    counts = {name: _calls_in(call, turn_s, clock) for name, call in contenders.items()}

    def seconds(name: str, _: int) -> float:
        return _seconds_per_call(contenders[name], counts[name], clock)

    return _alternately(list(contenders), num_rounds, seconds)


def first_calls(
    makers: Mapping[str, Callable[[int], Contender]],
    *,
    num_rounds: int,
    clock: Clock = time.process_time,
) -> dict[str, Figures]:
    """Seconds of one call of what each maker makes of a number that was not there before.

    Number 0 is called without being timed: what a program does once is not what is asked.
    """
    for maker in makers.values():
        maker(0)()

    def seconds(name: str, number: int) -> float:
        return _seconds_per_call(makers[name](number + 1), 1, clock)

    return _alternately(list(makers), num_rounds, seconds)


def bytes_each(
    makers: Mapping[str, Contender],
    *,
    num_rounds: int,
    num_objects: int,
    resident: Callable[[], int] | None = None,
) -> dict[str, Figures]:
    """By how many bytes the process grows with each object that is made.

    All stay alive until the end, so that none is put where another one was, and as many are made
    first to fill what is free.
    """
    measure = resident or resident_bytes
    kept: list[object] = [[make() for _ in range(num_objects)] for make in makers.values()]

    def growth(name: str, _: int) -> float:
        made: list[object] = [None] * num_objects
        kept.append(made)
        before = measure()
        for index in range(num_objects):
            made[index] = makers[name]()
        return (measure() - before) / num_objects

    return _alternately(list(makers), num_rounds, growth)


def _alternately(
    names: list[str], num_rounds: int, measure: Callable[[str, int], float]
) -> dict[str, Figures]:
    gc.collect()
    found: dict[str, list[float]] = {name: [] for name in names}
    order = list(names)
    for number in range(num_rounds):
        for name in order:
            found[name].append(measure(name, number))
        order = order[1:] + order[:1]
    return {name: Figures(tuple(numbers)) for name, numbers in found.items()}


def _calls_in(call: Contender, turn_s: float, clock: Clock) -> int:
    """How many calls fill a turn; finding out warms the contender up."""
    count = 1
    while True:
        took = _seconds_per_call(call, count, clock) * count
        if took >= turn_s / 4:
            return max(1, round(count * turn_s / took))
        count *= 4


def _seconds_per_call(call: Contender, count: int, clock: Clock) -> float:
    """Not timed are entering the contender's context, where it has one, and a first call in it."""
    context = getattr(call, "context", None)
    gc.disable()
    try:
        with context() if context else nullcontext():
            if context:
                call()
            return _seconds_of(call, count, clock) / count
    finally:
        gc.enable()


def _seconds_of(call: Contender, count: int, clock: Clock) -> float:
    start = clock()
    for _ in range(count):
        call()
    return clock() - start


def resident_bytes() -> int:
    """The memory of this process that is in use, as Linux counts it."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize()
