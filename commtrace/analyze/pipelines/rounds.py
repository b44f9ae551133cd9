"""Rounds of pipelines: the actions of all stages in one call of a schedule, and what they wait for.

Ranks that exchange activations are a pipeline. An action waits for the previous action on its
rank, and for its inputs:

    forward          of stage s waits for    forward of stage s - 1
    backward         of stage s waits for    forward of stage s, backward of stage s + 1
    backward_input   likewise
    backward_weight  of stage s waits for    backward_input of stage s

all of the same micro-batch. The loss of a micro-batch is a part of its forward pass. A rank begins
a round with the first action of a step, or when it repeats an action of its current round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from commtrace.analyze.pipelines.transfers import Transfers, transfers_of
from commtrace.analyze.run.cached_per_run import of_run
from commtrace.analyze.run.frame import Frames
from commtrace.schema import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, LOSS_OF_CHUNK

NONE = -1
_GRADIENT = (BACKWARD, BACKWARD_INPUT)


@dataclass(frozen=True, slots=True)
class Action:
    """An action of a round; times are in ns since the round began.

    Attributes:
        begin: Its begin, not before the end of the previous action of the rank.
        end: Its end, including the loss.
    """

    rank: int
    stage: int
    micro_batch: int
    kind: str
    begin: int
    end: int

    @property
    def duration(self) -> int:
        """Its duration in ns."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """A round of a pipeline.

    Attributes:
        pipeline: Number of the pipeline.
        step: Number of the step; -1 outside of steps.
        number: Number of the round in the step.
        start_ns: Begin of its first action, in Unix ns.
        actions: Actions in order of their begin.
        before: For each action, the place of the previous action on its rank; -1 if none.
        inputs: For each action, the places of those that it waits for.
        of_ranks: Places of the actions of each rank, in order.
    """

    pipeline: int
    step: int
    number: int
    start_ns: int
    actions: tuple[Action, ...]
    before: tuple[int, ...]
    inputs: tuple[tuple[int, ...], ...]
    of_ranks: dict[int, list[int]]

    @property
    def length(self) -> int:
        """Its length in ns."""
        return max(each.end for each in self.actions)

    def source(self, place: int) -> int:
        """Return the place of the action of another stage that sends an action's input, or -1."""
        stage = self.actions[place].stage
        others = [each for each in self.inputs[place] if self.actions[each].stage != stage]
        return others[0] if others else NONE


@of_run
def rounds(frames: Frames) -> list[Round]:
    """Return the rounds of all pipelines of a run, in order of pipelines and time."""
    table = frames.pipeline_actions
    is_known = (table[["stage", "micro_batch", "start_ns", "duration_ns"]] >= 0).all(axis=1)
    table = table[is_known & (table["action"] != "")]
    if table.empty:
        return []
    transfers = transfers_of(frames)
    table = _computing(table, transfers).sort_values(["rank", "start_ns", "id"], kind="stable")
    pipelines = transfers.pipelines(table["rank"].unique().tolist())
    found: dict[tuple[int, int, int], list[tuple[int, pd.DataFrame]]] = {}
    for rank, of_rank in table.groupby("rank"):
        for step, number, rows in _rounds_of_rank(of_rank):
            key = pipelines[int(str(rank))], step, number
            found.setdefault(key, []).append((int(str(rank)), rows))
    made = [_round(*key, parts) for key, parts in found.items()]
    return sorted(made, key=lambda each: (each.pipeline, each.start_ns))


def _computing(table: pd.DataFrame, transfers: Transfers) -> pd.DataFrame:
    """Return actions without a receive at their begin and a send at their end."""
    begin = table["start_ns"].to_numpy().copy()
    end = begin + table["duration_ns"].to_numpy()
    columns = table[["rank", "stage", "micro_batch", "action"]].itertuples(index=False, name=None)
    for place, (rank, stage, micro_batch, action) in enumerate(columns):
        span = int(begin[place]), int(end[place])
        begin[place], end[place] = transfers.within(rank, stage, micro_batch, action, *span)
    return table.assign(start_ns=begin, end_ns=end, action=table["action"].astype(object))


def _rounds_of_rank(table: pd.DataFrame) -> Iterator[tuple[int, int, pd.DataFrame]]:
    """Yield the step, the number in the step, and the rows of each round of a rank."""
    keys = list(zip(table["stage"], table["micro_batch"], table["action"], strict=True))
    steps = table["step"].tolist()
    seen: set[tuple[int, int, str]] = set()
    begins = [0]
    for place, key in enumerate(keys):
        if key in seen or steps[place] != steps[begins[-1]]:
            begins.append(place)
            seen.clear()
        seen.add(key)
    numbers: dict[int, int] = {}
    for begin, end in zip(begins, [*begins[1:], len(keys)], strict=True):
        rows = table.iloc[begin:end]
        step = int(rows["step"].iloc[0])
        numbers[step] = numbers.get(step, NONE) + 1
        yield step, numbers[step], rows


def _round(pipeline: int, step: int, number: int, parts: list[tuple[int, pd.DataFrame]]) -> Round:
    start_ns = min(int(rows["start_ns"].min()) for _, rows in parts)
    actions = [each for rank, rows in parts for each in _actions(rank, rows, start_ns)]
    return round_of(actions, pipeline=pipeline, step=step, number=number, start_ns=start_ns)


def _actions(rank: int, rows: pd.DataFrame, start_ns: int) -> list[Action]:
    """Return the actions of a rank in sequence, each loss joined to its forward pass."""
    found: list[Action] = []
    names = ["stage", "micro_batch", "action", "start_ns", "end_ns"]
    for stage, micro_batch, kind, start, end in rows[names].itertuples(index=False, name=None):
        last = found[-1] if found else None
        begin, until = int(start) - start_ns, int(end) - start_ns
        if (
            kind == LOSS_OF_CHUNK
            and last is not None
            and (last.kind, last.stage, last.micro_batch) == (FORWARD, stage, micro_batch)
        ):
            found[-1] = Action(
                rank, last.stage, last.micro_batch, FORWARD, last.begin, max(until, last.end)
            )
            continue
        begin = max(begin, last.end) if last is not None else begin
        found.append(
            Action(rank, int(stage), int(micro_batch), str(kind), begin, max(begin, until))
        )
    return found


def round_of(
    actions: list[Action], *, pipeline: int = 0, step: int = 0, number: int = 0, start_ns: int = 0
) -> Round:
    """Return the round of actions; actions of the same rank follow each other."""
    ordered = tuple(sorted(actions, key=lambda each: (each.begin, each.end)))
    place_of = {(each.stage, each.micro_batch, each.kind): i for i, each in enumerate(ordered)}
    of_ranks: dict[int, list[int]] = {}
    before: list[int] = []
    inputs: list[tuple[int, ...]] = []
    for place, each in enumerate(ordered):
        own = of_ranks.setdefault(each.rank, [])
        before.append(own[-1] if own else NONE)
        own.append(place)
        found = (place_of.get(key, NONE) for key in _awaited(each))
        # Clocks may differ by more than an action takes; such an input is left out.
        inputs.append(tuple([source for source in found if NONE < source < place]))
    return Round(
        pipeline, step, number, start_ns, ordered, tuple(before), tuple(inputs),
        dict(sorted(of_ranks.items())),
    )  # fmt: skip


def _awaited(action: Action) -> Iterator[tuple[int, int, str]]:
    stage, micro_batch = action.stage, action.micro_batch
    if action.kind == FORWARD:
        yield stage - 1, micro_batch, FORWARD
    elif action.kind in _GRADIENT:
        yield from ((stage + 1, micro_batch, kind) for kind in _GRADIENT)
        yield stage, micro_batch, FORWARD
    elif action.kind == BACKWARD_WEIGHT:
        yield stage, micro_batch, BACKWARD_INPUT


def medians(every: list[Round]) -> dict[tuple[int, int, str], float]:
    """Return the median duration of each pipeline's actions, by pipeline, stage and kind."""
    durations: dict[tuple[int, int, str], list[int]] = {}
    for each in every:
        for action in each.actions:
            key = each.pipeline, action.stage, action.kind
            durations.setdefault(key, []).append(action.duration)
    return {key: float(np.median(values)) for key, values in durations.items()}
