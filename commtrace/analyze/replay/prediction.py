"""A run with changes: its step time, and what the changes save in all of its steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from commtrace.analyze.measures.census import census
from commtrace.analyze.replay.basis import basis_of
from commtrace.analyze.replay.build import recorded_replay, work_graph
from commtrace.analyze.replay.changes import Change, Changed, changed
from commtrace.analyze.replay.effects import effects
from commtrace.analyze.replay.graph import Replay, replayed
from commtrace.analyze.replay.outcome import (
    LEAST_SHARE,
    Outcome,
    StepTime,
    step_lengths,
    step_time,
    steps_of,
)
from commtrace.analyze.replay.run_of import run_of
from commtrace.analyze.replay.stretches import time_by_work
from commtrace.analyze.run.cached_per_run import of_run
from commtrace.analyze.run.frame import Frames
from commtrace.errors import UsageError
from commtrace.units import counted


@dataclass(frozen=True, eq=False)
class ChangedSteps(ABC):
    """Steps of a run as changes make them.

    Attributes:
        changes: The changes.
        basis: The run, or the part of it that was replayed.
        before: Step time in the replay without changes, which is the recorded one.
        after: Step times with them: at least, and at most.
        lengths: Length of each step with them, by its number, in each replay (`step_lengths`).
        num_changed: Number of calls of all ranks that are changed, at most.
        num_unknown: Number of calls that are left alone for lack of data.
        num_inferred: Number of dependencies that the trace does not state.
        num_dependencies: Number of all dependencies.
    """

    changes: tuple[Change, ...]
    basis: Frames
    before: StepTime
    after: tuple[float, float]
    lengths: tuple[pd.Series, ...]
    num_changed: int
    num_unknown: int
    num_inferred: int
    num_dependencies: int

    @property
    def text(self) -> str:
        """The changes as they were asked for."""
        return "; ".join(dict.fromkeys([change.text for change in self.changes]))

    @property
    def saved_ns(self) -> tuple[float, float]:
        """Time of a step that the changes save: at least, and at most; below 0 if they cost."""
        return self.before.step_ns - self.after[1], self.before.step_ns - self.after[0]

    @property
    def outcome(self) -> Outcome:
        """Result for a step."""
        return Outcome(self.before, self.saved_ns, self.num_changed, self.num_unknown)

    @property
    def is_unknown(self) -> bool:
        """True if nothing is saved since the trace lacks what the changes need of all calls."""
        return self.num_unknown >= max(self.num_changed, 1) and not any(self.saved_ns)

    @property
    @abstractmethod
    def run(self) -> Frames:
        """The replayed run, with the longer of the step times."""

    @abstractmethod
    def effects(self) -> pd.DataFrame:
        """Return the times per step by rank, kind and wait state, before and after."""

    @abstractmethod
    def time_by_work(self) -> pd.Series:
        """Return the time of each sort of work on the critical path then, in ns, longest first."""

    @abstractmethod
    def runs_ahead(self) -> bool:
        """Return if some ranks end the steps much earlier than others, unlike recorded."""


@dataclass(frozen=True, eq=False)
class Prediction(ChangedSteps):
    """A replay with changes of a run in memory.

    Attributes:
        changed: The changed graph, by which the longer of the step times was found.
        replay: Its replay.
    """

    changed: Changed
    replay: Replay

    @property
    def run(self) -> Frames:
        """The replayed run, with the longer of the step times."""
        return run_of(self.basis, self.replay, self.changed.removed, self.text)

    def effects(self) -> pd.DataFrame:
        """Return the times per step by rank, kind and wait state, before and after."""
        return effects(self.basis, self.run, self.replay, self.changed.samples)

    def time_by_work(self) -> pd.Series:
        """Return the time of each sort of work on the critical path then, in ns, longest first."""
        return time_by_work(self.replay)

    def runs_ahead(self) -> bool:
        """Return if some ranks end the steps much earlier than others, unlike recorded."""
        steps = [steps_of(self.basis, each) for each in (recorded_replay(self.basis), self.replay)]
        before, after = (each.groupby("rank")["end"].max() for each in steps)
        saved = before - after
        return bool(len(saved)) and saved.max() - saved.min() > max(
            _AHEAD * self.before.num_steps * abs(self.saved_ns[1]), LEAST_SHARE * before.max()
        )


def predicted(run: Frames, changes: Sequence[Change]) -> Prediction:
    """Replay a run with changes.

    Raises:
        UsageError: A change names nothing in the run or contradicts another, or would let a call
            wait for itself; or the trace lacks times.
    """
    basis = basis_of(run)
    before = recorded_lengths(basis)
    results = [_replayed(basis, changes, 0.0)]
    if results[0][0].is_bound:
        results.append(_replayed(basis, changes, 1.0))
    lengths = [step_lengths(basis, replay) / made.samples for made, replay in results]
    times = [step_time(basis, each).step_ns for each in lengths]
    slowest = int(np.argmax(times))
    made, replay = results[slowest]
    links = made.graph.links
    return Prediction(
        tuple(changes),
        basis,
        step_time(basis, before),
        (min(times), max(times)),
        tuple(lengths),
        num_changed=max(len(each.rows) for each, _ in results),
        num_unknown=made.num_unknown,
        num_inferred=int(links.is_inferred.sum()),
        num_dependencies=len(links),
        changed=made,
        replay=replay,
    )


_AHEAD = 0.5
"""Part of the saving in all steps by which the ends of ranks come apart if it is saved once."""


@of_run
def recorded_lengths(basis: Frames) -> pd.Series:
    """Return the length of each step in the replay without changes, as `step_lengths`.

    Raises:
        UsageError: The times of all calls are unknown, or there is nothing to replay.
    """
    graph, num = work_graph(basis), basis.num_calls
    is_timed = len(graph.calls) and census(basis).has_ends
    if not is_timed and (num or not len(graph.points)):
        raise UsageError(
            "cannot replay the run",
            found=f"{counted(num, 'call')}, none with known times" if num else "no calls",
            why="a replay needs the time at which calls were issued, and at which they ended",
            attempt="a recording, or a trace with times",
        )
    return step_lengths(basis, recorded_replay(basis))


def _replayed(basis: Frames, changes: Sequence[Change], share: float) -> tuple[Changed, Replay]:
    found = changed(basis, work_graph(basis), changes, share)
    replay = replayed(found.graph)
    if not replay.times.is_reached.all():
        raise UsageError(
            f"cannot make the changes {'; '.join(each.text for each in changes)!r}",
            found="calls that would wait for each other in a circle",
            why="a call cannot be issued before what it waits for",
            attempt="fewer of the changes",
        )
    return found, replay
