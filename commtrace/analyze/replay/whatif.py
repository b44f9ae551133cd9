"""The step time of a run with changes, and the changes that pay, best first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from commtrace.analyze.replay.basis import basis_of
from commtrace.analyze.replay.build import work_graph
from commtrace.analyze.replay.changes import Change, Changed, changed
from commtrace.analyze.replay.graph import Replay, WorkGraph, replayed
from commtrace.analyze.replay.longest_path import recorded_replay
from commtrace.analyze.replay.outcome import StepTime, step_time
from commtrace.analyze.replay.run_of import run_of
from commtrace.analyze.replay.stretches import WORK, stretches
from commtrace.analyze.replay.suggestions import Proposal, of_findings, suggestions
from commtrace.analyze.replay.words import LIMIT, RANGE, why_not_replayed
from commtrace.analyze.replay.words import step_text as text_of_step
from commtrace.analyze.run.analysis import Analysis, typed
from commtrace.analyze.run.cached_per_run import of_run
from commtrace.analyze.run.frame import Frames
from commtrace.errors import UsageError
from commtrace.schema import Column
from commtrace.units import counted

COLUMNS = (
    Column("change", str, "", "the change, in words"),
    Column("how", str, "", "a way to make it"),
    Column("before_ns", float, "ns", "median time of a steady step, recorded", title="Step"),
    Column("step_ns", float, "ns", "that time with the change", title="With the change"),
    Column(
        "saved_ns", float, "ns", "time of a step that it saves; of a range, the least",
        title="Saves",
    ),
    Column("share", float, "1", "saved time as a fraction of the step", title="Of the step"),
    Column("most_saved_ns", float, "ns", "the most that it may save", title="At most"),
    Column("error_ns", float, "ns", "standard error of the step time", title="±"),
    Column("bound", str, "", "limit (a change saves at most as much), range, or empty"),
    Column("num_calls", int, "", "calls of all ranks that are changed", title="Calls"),
    Column(
        "num_unknown", int, "", "calls that it leaves alone since the trace lacks their data times",
        title="Not known",
    ),
    Column("text", str, "", "the change as `commtrace whatif RUN` takes it", title="Replayed"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """A run with changes.

    Attributes:
        basis: The run, or the part of it that was replayed.
        changes: The changes.
        before: Step time in the replay without changes, which is the recorded one.
        after: Step times with them: at least, and at most.
        changed: The changed graph, by which the longer of them was found.
        replay: Its replay.
    """

    basis: Frames
    changes: tuple[Change, ...]
    before: StepTime
    after: tuple[float, float]
    changed: Changed
    replay: Replay

    @property
    def text(self) -> str:
        """The changes as they were asked for."""
        return "; ".join(change.text for change in self.changes)

    @property
    def saved_ns(self) -> tuple[float, float]:
        """Time of a step that the changes save: at least, and at most; below 0 if they cost."""
        return self.before.step_ns - self.after[1], self.before.step_ns - self.after[0]

    @property
    def num_inferred(self) -> int:
        """Number of dependencies that the trace does not state."""
        return int(self.changed.graph.links.is_inferred.sum())

    @property
    def num_dependencies(self) -> int:
        """Number of all dependencies."""
        return len(self.changed.graph.links)

    @property
    def run(self) -> Frames:
        """The replayed run, with the longer of the step times."""
        return run_of(self.basis, self.replay, self.changed.removed, self.text)


def what_if(run: Frames, changes: Sequence[str | Change]) -> Prediction:
    """Replay a run with changes.

    Args:
        run: The run.
        changes: Texts of changes, such as `remove where kind=barrier`; see `replay.changes`.

    Raises:
        UsageError: A change is none, names nothing in the run or contradicts another, or would
            let a call wait for itself; or the trace lacks times.
    """
    basis = basis_of(run)
    given = tuple([of_findings(basis, each) if isinstance(each, str) else each for each in changes])
    graph = work_graph(basis)
    _check_times(basis, graph)
    before = _before(basis)
    results = [_replayed(basis, given, 0.0)]
    if results[0][0].is_bound:
        results.append(_replayed(basis, given, 1.0))
    times = [step_time(basis, replay).step_ns / made.samples for made, replay in results]
    slowest = int(np.argmax(times))
    return Prediction(basis, given, before, (min(times), max(times)), *results[slowest])


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


def _check_times(basis: Frames, graph: WorkGraph) -> None:
    if len(graph.calls) or (len(graph.points) and not basis.num_calls):
        return
    calls = counted(basis.num_calls, "call")
    raise UsageError(
        "cannot replay the run",
        found=f"{calls}, none with known times" if basis.num_calls else "no calls and no kernels",
        why="a replay needs the time at which each call was issued",
        attempt="a recording, or a trace with times",
    )


@of_run
def _before(basis: Frames) -> StepTime:
    return step_time(basis, recorded_replay(basis))


def best_changes(run: Frames) -> pd.DataFrame:
    """Return the changes that pay, the largest saving first; limits come last."""
    if not run.num_calls or why_not_replayed(run):
        return typed(pd.DataFrame(), COLUMNS)
    basis = basis_of(run)
    if not len(work_graph(basis).calls):
        return typed(pd.DataFrame(), COLUMNS)
    rows = [row for each in suggestions(basis) if (row := _row_of(basis, each)) is not None]
    table = pd.DataFrame(rows, columns=[column.name for column in COLUMNS])
    if table.empty:
        return typed(table, COLUMNS)
    table = table.assign(is_limit=table["bound"] == LIMIT)
    order = ["is_limit", "saved_ns", "most_saved_ns", "change"]
    ordered = table.sort_values(order, ascending=[True, False, False, True])
    return typed(ordered.drop(columns="is_limit").reset_index(drop=True), COLUMNS)


LEAST_SHARE = 0.001
"""Changes that save a smaller part of the step are left out."""
_LEAST_ERRORS = 2.0
"""Changes that save less than this many standard errors of the step time are left out."""


def _row_of(basis: Frames, suggestion: Proposal) -> dict[str, object] | None:
    """Return a row of the table; None if the change cannot be made or saves nothing."""
    try:
        return _row(suggestion, what_if(basis, suggestion.changes))
    except UsageError:  # its calls have no times, or would wait for each other
        return None


def _row(suggestion: Proposal, answer: Prediction) -> dict[str, object] | None:
    """Return a row of the table; None if the change saves nothing worth naming."""
    step = answer.before.step_ns
    least, most = (min(max(saved, 0.0), step) for saved in answer.saved_ns)
    noise = np.nan_to_num(_LEAST_ERRORS * answer.before.error_ns)
    if not most > max(LEAST_SHARE * step, noise):
        return None
    is_range = most - least > LEAST_SHARE * step
    return {
        "change": suggestion.title,
        "how": suggestion.how,
        "before_ns": step,
        "step_ns": step - least,
        "saved_ns": least,
        "share": least / step if step else math.nan,
        "most_saved_ns": most,
        "error_ns": answer.before.error_ns,
        "bound": LIMIT if suggestion.is_limit else RANGE if is_range else "",
        "num_calls": len(answer.changed.rows),
        "num_unknown": answer.changed.num_unknown,
        "text": answer.text,
    }


def step_text(run: Frames) -> str:
    """Return the step time of a run in words: `step 12.0 ± 0.1 ms, of 20 steady steps`."""
    return text_of_step(_before(basis_of(run)))


def bound_by(run: Frames) -> list[str]:
    """Return what the run's time is spent on, along its critical path, in sentences."""
    found = stretches(basis_of(run))
    lasts = (found["end"] - found["begin"]).groupby(found["sort"].map(WORK)).sum()
    total = float(lasts.sum())
    if not total:
        return []
    longest = lasts[lasts > 0.01 * total].sort_values(ascending=False)
    shares = ", ".join(f"{word} {time / total:.0%}" for word, time in longest.items())
    return [f"on the critical path: {shares}"]


WHATIF = Analysis(
    "whatif",
    "What would help",
    "Which change would save most of a step?",
    best_changes,
    COLUMNS,
    topic="Findings",
    shown="change how before_ns step_ns saved_ns share bound text",
)
