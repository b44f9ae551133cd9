"""Replay of rounds with other durations and delays, in the order in which their ranks ran.

    previous action of the rank  begin ── duration ──> end ──┐
    input                        begin ── duration ──> end ──┴── delay ──> begin ── duration ──> end

An action begins when the previous action of its rank and its inputs have ended, and its delay has
passed. With the durations and delays that were measured, a replay gives the times that were
measured. All rounds are one graph of the engine that replays runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np

from commtrace.analyze.pipelines.rounds import Action, Round
from commtrace.analyze.replay.engine import OutgoingEdges, reached


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


class Replays:
    """Rounds that are replayed together.

    Attributes:
        rounds: The rounds.
        actions: The actions of all of them.
    """

    def __init__(self, rounds: Sequence[Round]) -> None:
        self.rounds = rounds
        self.actions: list[Action] = [each for of in rounds for each in of.actions]
        lengths = np.array([len(of.actions) for of in rounds], dtype="int64")
        self._bounds = np.cumsum([0, *lengths])
        every = np.arange(len(self.actions))
        first = np.repeat(self._bounds[:-1], lengths)
        before = np.array([*chain.from_iterable(of.before for of in rounds)], dtype="int64")
        inputs = [each for of in rounds for each in of.inputs]
        num = np.array([*map(len, inputs)], dtype="int64")
        follows = before >= 0
        sources = np.array([*chain.from_iterable(inputs)], dtype="int64")
        source = np.concatenate([(before + first)[follows], sources + np.repeat(first, num)])
        self._awaits = np.concatenate([every[follows], np.repeat(every, num)])
        # The begin of an action is point 2n, and its end is point 2n + 1.
        self._edges = OutgoingEdges.of(
            np.concatenate([2 * every, 2 * source + 1]),
            np.concatenate([2 * every + 1, 2 * self._awaits]),
            2 * len(every),
        )

    def replay(
        self, durations: Sequence[float], delays: Sequence[float] | None = None
    ) -> Iterator[Replayed]:
        """Yield the times of each round if the actions have these durations and delays, in ns."""
        lasts = np.asarray(durations, dtype="float64")
        late = np.zeros(len(lasts)) if delays is None else np.asarray(delays, dtype="float64")
        lengths = np.concatenate([lasts, late[self._awaits]])
        origin = np.stack([late, late], axis=1).ravel()
        begins, ends = reached(self._edges, lengths, origin).time.reshape(-1, 2).T.tolist()
        for first, last in pairwise(self._bounds.tolist()):
            yield Replayed(begins[first:last], ends[first:last])


def idle_of(of: Round, times: Replayed, rank: int) -> list[int]:
    """Return for how many ns a rank is idle before each of its actions, and after the last."""
    places = of.of_ranks[rank]
    until = [0.0, *(times.ends[place] for place in places)]
    since = [*(times.begins[place] for place in places), times.length]
    return [round(begin - end) for end, begin in zip(until, since, strict=True)]
