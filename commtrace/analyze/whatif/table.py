"""The changes that would make a step of a run shorter, best first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from commtrace.analyze.findings import grouped_savings
from commtrace.analyze.findings.finding import MACHINE, USUAL
from commtrace.analyze.findings.savings import Saving
from commtrace.analyze.replay.basis import basis_of
from commtrace.analyze.replay.build import recorded_replay, work_graph
from commtrace.analyze.replay.outcome import LEAST_SHARE, Outcome, step_time
from commtrace.analyze.replay.prediction import predicted, recorded_lengths
from commtrace.analyze.replay.stretches import time_by_work
from commtrace.analyze.replay.words import LIMIT, RANGE, critical_text, why_not_replayed
from commtrace.analyze.replay.words import step_text as text_of_step
from commtrace.analyze.replay.work import LEAST_STEPS
from commtrace.analyze.run.analysis import Analysis, typed
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.whatif.suggestions import Proposal, suggestions
from commtrace.errors import UsageError
from commtrace.schema import Column

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
        "num_unknown", int, "", "calls for which the trace lacks what the change needs",
        title="Not known",
    ),
    Column("text", str, "", "the change as `commtrace whatif RUN` takes it", title="Replayed"),
)  # fmt: skip


def best_changes(run: Frames) -> pd.DataFrame:
    """Return the changes that pay, the largest saving first; limits come last."""
    if not run.num_calls or why_not_replayed(run):
        return typed(pd.DataFrame(), COLUMNS)
    basis = basis_of(run)
    if not len(work_graph(basis).calls):
        return typed(pd.DataFrame(), COLUMNS)
    every = [*_of_findings(run), *map(partial(_of_proposal, basis), suggestions(basis))]
    table = pd.DataFrame([*filter(None, every)], columns=[column.name for column in COLUMNS])
    if table.empty:
        return typed(table, COLUMNS)
    table = table.assign(is_limit=table["bound"] == LIMIT)
    order = ["is_limit", "saved_ns", "most_saved_ns", "change"]
    ordered = table.sort_values(order, ascending=[True, False, False, True])
    return typed(ordered.drop(columns="is_limit").reset_index(drop=True), COLUMNS)


_LEAST_ERRORS = 2.0
"""Changes that save less than this many standard errors of the step time are left out, but for
those that cure findings about the program, which have evidence of their own."""


def _of_findings(run: Frames) -> Iterator[dict[str, object] | None]:
    """Yield rows of the changes that cure similar findings, but for single events in few steps."""
    for row, saving in grouped_savings(run):
        outcome = saving.outcome
        if outcome is None:
            continue
        is_event = row["change"].startswith(USUAL)
        if not is_event:
            outcome = _in_mean_step(outcome, saving)
        if not (is_event and 0 < outcome.before.num_steps < LEAST_STEPS):
            names = {"change": row["title"], "how": row["advice"], "text": row["change"]}
            is_of_machine = row["concerns"] == MACHINE
            yield _row(outcome, names, least_errors=_LEAST_ERRORS if is_of_machine else 0.0)


def _in_mean_step(outcome: Outcome, saving: Saving) -> Outcome:
    """Return the result for a step by what all steps save; some calls are in few of them."""
    if not saving.time_ns > 0:
        return outcome
    least, most = (
        each / saving.time_ns * outcome.before.step_ns for each in (saving.least_ns, saving.most_ns)
    )
    return replace(outcome, saved_ns=(least, most))


def _of_proposal(basis: Frames, proposal: Proposal) -> dict[str, object] | None:
    """Return a row of the table; None if the change cannot be made or saves nothing."""
    try:
        answer = predicted(basis, proposal.changes)
    except UsageError:  # its calls have no times, or would wait for each other
        return None
    names = {"change": proposal.title, "how": proposal.how, "text": answer.text}
    return _row(answer.outcome, names, is_limit=proposal.is_limit)


def _row(
    outcome: Outcome,
    names: Mapping[str, object],
    *,
    is_limit: bool = False,
    least_errors: float = _LEAST_ERRORS,
) -> dict[str, object] | None:
    """Return a row of the table; None if the change saves nothing worth naming."""
    step = outcome.before.step_ns
    least, most = (min(max(saved, 0.0), step) for saved in outcome.saved_ns)
    noise = np.nan_to_num(least_errors * outcome.before.error_ns)
    if not most > max(LEAST_SHARE * step, noise):
        return None
    is_range = most - least > LEAST_SHARE * step
    return {
        **names,
        "before_ns": step,
        "step_ns": step - least,
        "saved_ns": least,
        "share": least / step if step else math.nan,
        "most_saved_ns": most if is_range else least,
        "error_ns": outcome.before.error_ns,
        "bound": LIMIT if is_limit else RANGE if is_range else "",
        "num_calls": outcome.num_calls,
        "num_unknown": outcome.num_unknown,
    }


def step_text(run: Frames) -> str:
    """Return the step time of a run in words: `step 12.0 ± 0.1 ms, of 20 steady steps`."""
    basis = basis_of(run)
    return text_of_step(step_time(basis, recorded_lengths(basis)))


def bound_by(run: Frames) -> list[str]:
    """Return what the run's time is spent on, along its critical path, in sentences."""
    shares = critical_text(time_by_work(recorded_replay(basis_of(run))))
    return [f"on the critical path: {shares}"] if shares else []


WHATIF = Analysis(
    "whatif",
    "What would help",
    "Which change would save most of a step?",
    best_changes,
    COLUMNS,
    topic="Findings",
    shown="change how before_ns step_ns saved_ns share bound text",
)
