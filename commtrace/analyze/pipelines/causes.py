"""Causes of the idle time of pipeline ranks, and how they divide each interval.

A round is replayed several times, each time with one more thing that was measured (`LEVELS`). The
time that a rank is idle in a replay, and not in those before, has the cause of that replay. An
interval that was measured is filled with the causes in their order, from what the replays have by
that time and earlier intervals of the rank have left; what no replay explains is the transfer. So
the parts of each interval add up to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from commtrace.analyze.pipelines.delays import Delay
from commtrace.analyze.pipelines.replay import Replayed, idle_of, replay
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
        "the data had been sent; its receive was issued late, or another transfer blocked the rank"
    ),
    TRANSFER: "the data was on its way, or the program was between two actions",
}
"""Meaning of each cause, in order."""

_SCHEDULE = ""
LEVELS = (_SCHEDULE, IMBALANCE, STRAGGLER, LATE_SEND, BLOCKED_RECEIVE)
"""Causes of the replays; the first one is warm-up or drain."""


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


def ideal(of: Round, times: Times) -> Replayed:
    """Return a round with equal stages and without delays."""
    return replay(of, [times.equal[each.kind] for each in of.actions])


def balanced(of: Round, times: Times) -> Replayed:
    """Return a round with the median times of its stages and without delays."""
    return replay(of, [times.of_stages[each.stage, each.kind] for each in of.actions])


def causes_of(
    of: Round, times: Times, delays: Sequence[Delay]
) -> dict[int, list[dict[str, float]]]:
    """Return the causes of each interval of each rank: before each action, and after the last."""
    durations = [float(each.duration) for each in of.actions]
    late = [float(each.late_send) for each in delays]
    blocked = [each.late_send + float(each.blocked_receive) for each in delays]
    replays = (
        ideal(of, times),
        balanced(of, times),
        replay(of, durations),
        replay(of, durations, late),
        replay(of, durations, blocked),
    )
    ran = Replayed(
        [float(each.begin) for each in of.actions], [float(each.end) for each in of.actions]
    )
    return {
        rank: _filled(
            idle_of(of, ran, rank), [idle_of(of, each, rank) for each in replays], _names(of, rank)
        )
        for rank in of.of_ranks
    }


def _names(of: Round, rank: int) -> list[str]:
    """Return for each interval of a rank whether the schedule's part is warm-up or drain."""
    kinds = [of.actions[place].kind for place in of.of_ranks[rank]]
    last = max((place for place, kind in enumerate(kinds) if kind == FORWARD), default=-1)
    return [WARM_UP if place <= last else DRAIN for place in range(len(kinds) + 1)]


def _filled(
    measured: Sequence[float], levels: Sequence[Sequence[float]], names: Sequence[str]
) -> list[dict[str, float]]:
    """Fill each measured interval from the levels, in order."""
    # What the replays up to each level have explained by then, at most.
    allowed = np.maximum.accumulate(np.cumsum(np.asarray(levels, dtype="float64"), axis=1), axis=0)
    used = np.zeros(len(levels))
    filled: list[dict[str, float]] = []
    for place, idle in enumerate(measured):
        left = float(idle)
        parts: dict[str, float] = {}
        for level, cause in enumerate(LEVELS):
            part = min(left, max(0.0, allowed[level, place] - used[level]))
            if part > 0:
                parts[cause or names[place]] = part
                used[level:] += part
                left -= part
        if left > 0:
            parts[TRANSFER] = left
        filled.append(parts)
    return filled
