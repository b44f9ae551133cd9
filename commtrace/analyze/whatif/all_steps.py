"""Changes in all steady steps of a run that is larger than memory, replayed block by block.

    steps    0  |  1 2 3 4 5 6 | 7 8 9 10 11 12 | ...     each block with all ranks, by itself

A block begins as it was recorded: what is ahead at the end of one does not reach the next.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from commtrace.analyze.replay.basis import Basis, blocks_of_steps
from commtrace.analyze.replay.changes import Change
from commtrace.analyze.replay.context import NothingNamedError
from commtrace.analyze.replay.effects import mean_effects
from commtrace.analyze.replay.outcome import step_time
from commtrace.analyze.replay.prediction import (
    ChangedSteps,
    Prediction,
    predicted,
    recorded_lengths,
)
from commtrace.analyze.run.frame import Frames
from commtrace.errors import UsageError


@dataclass(frozen=True, eq=False)
class InBlocks(ChangedSteps):
    """Replays with changes of all blocks of steps of a run, which are not kept.

    Attributes:
        times: Times per step by rank, kind and wait state, before and after: means over steps.
        critical: Time of each sort of work on the critical paths of all blocks.
        is_ahead: True if ranks run ahead in any block.
    """

    times: pd.DataFrame
    critical: pd.Series
    is_ahead: bool

    @property
    def run(self) -> Frames:
        """None is kept.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            "cannot return the replayed run",
            found="a replay of all steps, block by block",
            why="the blocks are not in memory at once",
            attempt="the replay of some steps: --steps FIRST:LAST, or without --all-steps",
        )

    def effects(self) -> pd.DataFrame:
        """Return the times per step by rank, kind and wait state, before and after."""
        return self.times

    def time_by_work(self) -> pd.Series:
        """Return the time of each sort of work on the critical paths then, in ns, longest first."""
        return self.critical

    def runs_ahead(self) -> bool:
        """Return if some ranks end the steps of a block much earlier than others."""
        return self.is_ahead


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """Results of a block: its steps as recorded, and its replays as in `ChangedSteps`."""

    before: pd.Series
    lengths: tuple[pd.Series, ...]
    counts: tuple[int, ...]
    times: pd.DataFrame
    critical: pd.Series
    is_ahead: bool


def in_all_steps(run: Frames, changes_in: Callable[[Basis], Sequence[Change]]) -> ChangedSteps:
    """Replay all steady steps of a run with changes.

    Args:
        run: The run.
        changes_in: Returns the changes of calls of a block.

    Raises:
        UsageError: As of `predicted`; if conditions name nothing, in no block.
    """
    blocks: list[_Block] = []
    changes: Sequence[Change] = ()
    absent: dict[int, list[NothingNamedError]] = {}
    for basis in blocks_of_steps(run):
        changes = changes_in(basis)
        if basis.is_whole:
            return predicted(basis.frames, changes)
        named = dict(enumerate(changes))
        while True:
            try:
                answer = predicted(basis.frames, [*named.values()])
                break
            except NothingNamedError as error:
                number = next(key for key, each in named.items() if each is error.change)
                absent.setdefault(number, []).append(error)
                del named[number]
        blocks.append(_block(answer))
        del basis, answer
        gc.collect()  # graphs and their run refer to each other
    for errors in absent.values():
        if len(errors) == len(blocks):
            raise errors[0]
    return _joined(run, changes, blocks)


def _block(answer: Prediction) -> _Block:
    return _Block(
        recorded_lengths(answer.basis),
        answer.lengths,
        (
            answer.num_changed,
            answer.num_unknown,
            answer.num_inferred,
            answer.num_dependencies,
        ),
        answer.effects(),
        answer.time_by_work(),
        answer.runs_ahead(),
    )


def _joined(run: Frames, changes: Sequence[Change], blocks: Sequence[_Block]) -> InBlocks:
    num_replays = max(len(block.lengths) for block in blocks)
    # A block in which nothing is a range has one replay, which counts for each.
    lengths = [
        pd.concat([block.lengths[min(number, len(block.lengths) - 1)] for block in blocks])
        for number in range(num_replays)
    ]
    times = [step_time(run, each).step_ns for each in lengths]
    return InBlocks(
        tuple(changes),
        run,
        step_time(run, pd.concat([block.before for block in blocks])),
        (min(times), max(times)),
        tuple(lengths),
        *map(sum, zip(*(block.counts for block in blocks), strict=True)),
        times=mean_effects([(block.times, len(block.before)) for block in blocks]),
        critical=pd.concat([block.critical for block in blocks])
        .groupby(level=0)
        .sum()
        .sort_values(ascending=False),
        is_ahead=any(block.is_ahead for block in blocks),
    )
