"""Alternating measurement of contenders, so that machine noise affects all of them alike.

The input is functions, the output one number per round. In every round each contender runs for
about the same time, and the order rotates from round to round. A ratio is taken within a round; the
result is its median over rounds. Rounds are short and many, so a disturbance spoils few of them.
The clock is the CPU time of this process, which excludes other programs on the machine.
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
    """Seconds per call, or bytes per object: one number per round."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Median over rounds."""
        return statistics.median(self.rounds)

    def ratio(self, other: Figures) -> float:
        """Return the median over rounds of the ratio to `other`.

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
    """Measure the seconds per call of each contender, in turns of about `turn_s`."""
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
    """Measure the seconds of the first call of each function that a maker returns.

    A maker is called with a new number in each round. Number 0 is called untimed, to exclude
    one-time
    costs of the process.
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
    """Measure the growth of the process in bytes per created object.

    All objects stay alive until the end, so that none reuses the memory of another. As many are
    created first, to fill the free lists of the allocator.
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
    """Number of calls that fill a turn; measuring it also warms up the contender."""
    count = 1
    while True:
        took = _seconds_per_call(call, count, clock) * count
        if took >= turn_s / 4:
            return max(1, round(count * turn_s / took))
        count *= 4


def _seconds_per_call(call: Contender, count: int, clock: Clock) -> float:
    """Seconds per call; the contender's context, if any, is entered and called once untimed."""
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
    """Resident memory of this process in bytes, from Linux's /proc."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize()
