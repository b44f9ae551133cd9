"""Causes of the idle time of pipeline ranks, and how they divide each interval.

A round is replayed several times, each time with one more measured effect (`LEVELS`). The time by
which a rank is idle for longer than in all replays before has the cause of that replay; what no
replay explains is the transfer. This time is found in the intervals that were measured, where the
replay has it, or as soon after as the rank is idle. So the parts of each interval add up to it, and
the parts of a cause to the difference of replays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from commtrace.analyze.pipelines.delays import Delay
from commtrace.analyze.pipelines.replay import Replayed, Replays, idle_of
from commtrace.analyze.pipelines.rounds import Round
from commtrace.schema import FORWARD

WARM_UP, DRAIN, IMBALANCE, STRAGGLER = "warm_up", "drain", "imbalance", "straggler"
LATE_SEND, BLOCKED_RECEIVE, TRANSFER = "late_send", "blocked_receive", "transfer"

CAUSES: Mapping[str, str] = {
    WARM_UP: "the schedule itself, with equal stages, before the rank's last forward pass",
    DRAIN: "likewise, after it",
    IMBALANCE: "stages differ in their median times",
    STRAGGLER: "an action took longer than the median of its stage",
    LATE_SEND: "a stage had computed its output, and sent it later",
    BLOCKED_RECEIVE: (
        "the data had been sent; its receive was issued late, or another receive blocked the rank"
    ),
    TRANSFER: "the data was on its way, or the program was between two actions",
}
"""Meaning of each cause, in order."""

_SCHEDULE = ""
LEVELS = (_SCHEDULE, IMBALANCE, STRAGGLER, LATE_SEND, BLOCKED_RECEIVE)
"""Causes of the replays; the first is warm-up or drain."""


@dataclass(frozen=True, slots=True)
class Times:
    """Durations of a pipeline's actions in ns, by kind or by stage and kind.

    Attributes:
        of_stages: Medians.
        equal: Their mean over stages.
    """

    of_stages: Mapping[tuple[int, str], float]
    equal: Mapping[str, float]

    @classmethod
    def of(cls, of_stages: Mapping[tuple[int, str], float]) -> Times:
        """Return the times of a pipeline from the medians of its stages."""
        kinds = {kind for _, kind in of_stages}
        equal = {
            kind: float(np.mean([time for (_, each), time in of_stages.items() if each == kind]))
            for kind in kinds
        }
        return cls(of_stages, equal)


def ideal(every: Sequence[Round], times: Mapping[int, Times]) -> list[Replayed]:
    """Return rounds with equal stages and without delays; `times` is by pipeline."""
    return list(Replays(every).replay(_equal(every, times)))


def balanced(replays: Replays, times: Mapping[int, Times]) -> Iterator[Replayed]:
    """Yield rounds with the median times of their stages and without delays."""
    return replays.replay(
        [
            times[of.pipeline].of_stages[each.stage, each.kind]
            for of in replays.rounds
            for each in of.actions
        ]
    )


def _equal(every: Sequence[Round], times: Mapping[int, Times]) -> list[float]:
    return [times[of.pipeline].equal[each.kind] for of in every for each in of.actions]


def causes_of(
    every: Sequence[Round], times: Mapping[int, Times], delays: Sequence[Sequence[Delay]]
) -> Iterator[dict[int, list[dict[str, int]]]]:
    """Yield the causes of each interval of each rank of a round: before each action, and last.

    Args:
        every: The rounds.
        times: Times of each pipeline.
        delays: Delays of the actions of each round.
    """
    replays = Replays(every)
    durations = [each.duration for each in replays.actions]
    late = [each.late_send for of in delays for each in of]
    blocked = [each.late_send + each.blocked_receive for of in delays for each in of]
    levels = zip(
        replays.replay(_equal(every, times)),
        balanced(replays, times),
        replays.replay(durations),
        replays.replay(durations, late),
        replays.replay(durations, blocked),
        strict=True,
    )
    for of, replayed in zip(every, levels, strict=True):
        ran = Replayed([each.begin for each in of.actions], [each.end for each in of.actions])
        yield {
            rank: _filled(
                idle_of(of, ran, rank),
                [idle_of(of, each, rank) for each in replayed],
                _names(of, rank),
            )
            for rank in of.of_ranks
        }


def _names(of: Round, rank: int) -> list[str]:
    """Return for each interval of a rank whether the schedule's part is warm-up or drain."""
    kinds = [of.actions[place].kind for place in of.of_ranks[rank]]
    last = max((place for place, kind in enumerate(kinds) if kind == FORWARD), default=-1)
    return [WARM_UP if place <= last else DRAIN for place in range(len(kinds) + 1)]


def _filled(
    measured: Sequence[int], levels: Sequence[Sequence[int]], names: Sequence[str]
) -> list[dict[str, int]]:
    """Divide the measured intervals of a rank by the causes of the levels, in order."""
    left = list(measured)
    filled: list[dict[str, int]] = [{} for _ in left]
    ahead = [0] * len(left)
    used = [0] * len(left)
    total = 0
    for cause, idle in zip(LEVELS, levels, strict=True):
        ahead = list(map(max, ahead, accumulate(idle)))
        target = min(sum(measured), max(total, sum(idle))) - total
        total += target
        allowed = [most - own for most, own in zip(ahead, accumulate(used), strict=True)]
        for place, part in _shared(left, allowed, target):
            filled[place][cause or names[place]] = part
            used[place] += part
            left[place] -= part
    for parts, rest in zip(filled, left, strict=True):
        if rest > 0:
            parts[TRANSFER] = rest
    return filled


def _shared(left: Sequence[int], allowed: Sequence[int], target: int) -> Iterator[tuple[int, int]]:
    """Divide the time of a cause among intervals, and yield place and part of each that gets any.

    An interval gets at most the time that it has left, and no more than is allowed until then. The
    rest belongs to earlier intervals, and goes to the last intervals that have time left.
    """
    parts = [0] * len(left)
    given = 0
    for place, rest in enumerate(left):
        parts[place] = max(0, min(rest, allowed[place] - given, target - given))
        given += parts[place]
    for place in reversed(range(len(left))):
        more = max(0, min(left[place] - parts[place], target - given))
        parts[place] += more
        given += more
    return ((place, part) for place, part in enumerate(parts) if part > 0)
