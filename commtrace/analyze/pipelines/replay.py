"""Replay of a round with other durations and delays, in the order in which its ranks ran.

An action begins when the previous action of its rank and its inputs have ended, and its delay has
passed. With the durations and delays that were measured, a replay gives the times that were
measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commtrace.analyze.pipelines.rounds import Round


@dataclass(frozen=True, slots=True)
class Replayed:
    """Times of a round in a replay, in ns.

    Attributes:
        begins: Begin of each action.
        ends: End of each action.
    """

    begins: list[float]
    ends: list[float]

    @property
    def length(self) -> float:
        """Length of the round."""
        return max(self.ends)


def replay(
    of: Round, durations: Sequence[float], delays: Sequence[float] | None = None
) -> Replayed:
    """Return the times of a round in which actions have these durations and delays."""
    begins: list[float] = []
    ends: list[float] = []
    for place, duration in enumerate(durations):
        before = of.before[place]
        begin = ends[before] if before >= 0 else 0.0
        for source in of.inputs[place]:
            begin = max(begin, ends[source])
        if delays is not None:
            begin += delays[place]
        begins.append(begin)
        ends.append(begin + duration)
    return Replayed(begins, ends)


def idle_of(of: Round, times: Replayed, rank: int) -> list[int]:
    """Return for how many ns a rank is idle before each of its actions, and after the last."""
    places = of.of_ranks[rank]
    until = [0.0, *(times.ends[place] for place in places)]
    since = [*(times.begins[place] for place in places), times.length]
    return [round(begin - end) for end, begin in zip(until, since, strict=True)]
