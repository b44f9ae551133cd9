"""Savings of findings, by replays of the run with the changes that cure them.

    saving = sum over counted steps of (step time as recorded - step time with the change)

It is at least 0 and at most the time of these steps, which are the steady ones, and all of them for
a single event. Without steps, the whole run counts as one. If a part of a large run is replayed
(`replay.basis`), the mean of its steps counts for each step of the run. A saving is unknown if no
replay can make the change, or none of the calls is in the replay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from commtrace.analyze.findings.finding import REMOVE, SHRINK, Finding, Rule
from commtrace.analyze.measures.steady_steps import is_counted
from commtrace.analyze.replay.basis import Basis, replayed_calls
from commtrace.analyze.replay.build import work_graph
from commtrace.analyze.replay.changes import FINDING, Change, parsed, separate
from commtrace.analyze.replay.outcome import LEAST_SHARE, Outcome
from commtrace.analyze.replay.prediction import Prediction, predicted, recorded_lengths
from commtrace.analyze.run.frame import Frames
from commtrace.errors import UsageError

_LEAST_FACTOR = 1e-3
"""Part of a transfer from which it is not worth keeping."""
Cured = Mapping[str, Sequence[Finding]]
"""Findings by the changes that cure them."""


@dataclass(frozen=True, slots=True)
class Saving:
    """Time of a run that the cure of findings saves, mean over ranks.

    Attributes:
        least_ns: At least; nan if it is unknown.
        most_ns: At most.
        error_ns: Standard error of the most, by the variation between steps; nan if unknown.
        time_ns: Time of the steps that it is saved in.
        num_untimed: Calls that the replay leaves alone, since it lacks times; of all ranks.
        outcome: Result for a step; None without a replay.
    """

    least_ns: float = math.nan
    most_ns: float = math.nan
    error_ns: float = math.nan
    time_ns: float = math.nan
    num_untimed: float = 0.0
    outcome: Outcome | None = None


_UNKNOWN, _NOTHING = Saving(), Saving(0.0, 0.0)


def cure_of(rule: Rule, finding: Finding) -> str | None:
    """Return the changes that cure a finding; "" if a replay can make none, None if none saves."""
    cure = rule.cure if finding.cure is None else finding.cure
    if cure != SHRINK:
        return cure
    wire = finding.calls.wire_bytes
    factor = 1 - finding.calls.cost_bytes / wire if wire > 0 else math.nan
    if math.isnan(factor):
        return ""
    return REMOVE if factor < _LEAST_FACTOR else f"{SHRINK} *{factor:.4g}"


def changes_of(basis: Basis, cure: str, found: Sequence[Finding]) -> list[Change]:
    """Return changes without conditions as changes of the calls of findings.

    Raises:
        UsageError: There is no such change.
    """
    rows = _rows_of(basis, found)
    every = [parsed(text) for text in separate(cure)]
    return [each if each.where else replace(each, rows=rows) for each in every]


def text_of(cures: Mapping[str, Sequence[int]]) -> str:
    """Return changes as `commtrace whatif` takes them, by the numbers of the findings.

    >>> text_of({"remove": [1, 3], "compute *0.5 where rank=0": [2]})
    'remove where finding=1,3; compute *0.5 where rank=0'
    """
    return "; ".join(
        text if " where " in text else f"{text} where {FINDING}={','.join(map(str, numbers))}"
        for cure, numbers in cures.items()
        for text in separate(cure)
    )


def saving_of(frames: Frames, cured: Mapping[str | None, Sequence[Finding]], rule: Rule) -> Saving:
    """Return the saving of findings of a rule that are cured together."""
    cures = {cure: found for cure, found in cured.items() if cure}
    if not cures:
        return _NOTHING if None in cured else _UNKNOWN
    every = [each for found in cures.values() for each in found]
    try:
        basis = replayed_calls(frames)
        rows, num_calls = _rows_of(basis, every), sum(len(each.rows) for each in every)
        num_known = int(np.isin(rows, work_graph(basis.frames).calls.index).sum())
        if not num_known or (rule.is_once and len(rows) < num_calls):
            return Saving(num_untimed=num_calls)
        answer = predicted(
            frames, [each for cure in cures for each in changes_of(basis, cure, cures[cure])]
        )
    except UsageError:  # it lacks times, or calls would wait for each other
        return _UNKNOWN
    if answer.is_unknown:
        return Saving(num_untimed=num_calls)
    num_unknown = answer.changed.num_unknown
    # What lacks the times of its data is left alone by one part of a change, or by several.
    num_left = len(rows) - np.isin(rows, answer.changed.rows).sum()
    num_untimed = max(len(rows) - num_known, min(num_unknown, num_left))
    saving = _in_all(frames, basis, answer, rule)
    return replace(saving, num_untimed=float(num_untimed * num_calls / len(rows)))


def _rows_of(basis: Basis, found: Sequence[Finding]) -> np.ndarray:
    """Return the rows of the replayed part that are calls of findings."""
    places = [each.rows.places_in(basis.labels) for each in found]
    return basis.frames.comm.index.to_numpy()[np.unique(np.concatenate(places))]


def _in_all(frames: Frames, basis: Basis, answer: Prediction, rule: Rule) -> Saving:
    """Return what a prediction saves in all steps that count."""
    before = recorded_lengths(basis.frames)
    if not rule.is_once:
        before = before[is_counted(basis.frames, before.index.to_series())]
    scale = 1.0 if basis.is_whole or rule.is_once else _num_counted(frames) / len(before)
    time = float(before.sum()) * scale
    saved = [float((before - each.reindex(before.index)).sum()) * scale for each in answer.lengths]
    least, most = (min(max(each, 0.0), time) for each in (min(saved), max(saved)))
    step = answer.before
    return Saving(
        least_ns=least,
        most_ns=most if most - least > LEAST_SHARE * time else least,
        error_ns=most * step.error_ns / step.step_ns if step.step_ns > 0 else math.nan,
        time_ns=time,
        outcome=answer.outcome,
    )


def _num_counted(frames: Frames) -> int:
    steps: pd.Series = frames.timed_steps["step"]
    return steps[is_counted(frames, steps)].nunique()
