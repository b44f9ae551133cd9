"""Findings: the rules for avoidable communication, and their results as a table.

Savings come from replays with the changes that cure findings (`findings.savings`). Rules that
lack data in a trace are listed in `unanswered`, so that an empty result is not mistaken for a clean
run. Findings muted by the settings are omitted and counted (`muted`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from commtrace.analyze.findings.apart import SUMS_APART
from commtrace.analyze.findings.dependent import DEPENDENT_COMMUNICATION
from commtrace.analyze.findings.each_step import (
    BROADCAST_BUFFERS,
    OBJECT_COLLECTIVES,
    REDUCE_THEN_BROADCAST,
    REDUNDANT_BARRIER,
    UNCHANGED_BROADCAST,
)
from commtrace.analyze.findings.finding import (
    COLUMNS,
    Finding,
    Rule,
    in_order,
)
from commtrace.analyze.findings.grouping import by_missing_data, likeness, united
from commtrace.analyze.findings.growing import GROWING_STEPS
from commtrace.analyze.findings.hang import HANG
from commtrace.analyze.findings.imbalance import IMBALANCE
from commtrace.analyze.findings.late_in_turn import LOAD_IMBALANCE
from commtrace.analyze.findings.logits import GATHERED_LOGITS
from commtrace.analyze.findings.metrics import METRICS_EACH_STEP
from commtrace.analyze.findings.overlap_lost import OVERLAP
from commtrace.analyze.findings.pipelines import PIPELINE_BUBBLES
from commtrace.analyze.findings.receives import SERIAL_RECEIVES
from commtrace.analyze.findings.reduced import REPEATED_REDUCTION
from commtrace.analyze.findings.repeated import (
    ALL_REDUCE_THEN_SHARD,
    PING_PONG,
    REPEATED_ALL_GATHER,
)
from commtrace.analyze.findings.savings import Saving, cure_of, saving_of, text_of
from commtrace.analyze.findings.sends import SERIAL_SENDS
from commtrace.analyze.findings.shared_cores import SHARED_CORES
from commtrace.analyze.findings.slow_link import SLOW_LINK
from commtrace.analyze.findings.stragglers import STALL, STRAGGLER
from commtrace.analyze.findings.table_rows import saving_columns, table_row
from commtrace.analyze.findings.traffic import (
    FLOAT32_MESSAGES,
    OUTSIDE,
    PADDED,
    REPLICATION_FALLBACK,
    SMALL_MESSAGES,
)
from commtrace.analyze.findings.wrappers import COPIES, SINGLE_UNIT, UNUSED_PARAMETER_FLAGS
from commtrace.analyze.findings.wrong_reduction import WRONG_REDUCTION
from commtrace.analyze.run.analysis import Analysis, typed
from commtrace.analyze.run.cached_per_run import cached_per_run
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.program_folder import relative
from commtrace.settings import unknown_rules

__all__ = [
    "FINDINGS",
    "RULES",
    "Reported",
    "Rule",
    "by_missing_data",
    "detected",
    "evaluated_note",
    "findings",
    "grouped",
    "muted",
    "reported",
    "unanswered",
]

RULES: tuple[Rule, ...] = (
    HANG,
    *(REPEATED_ALL_GATHER, ALL_REDUCE_THEN_SHARD, PING_PONG, SMALL_MESSAGES, FLOAT32_MESSAGES),
    *(
        UNUSED_PARAMETER_FLAGS,
        REPLICATION_FALLBACK,
        OUTSIDE,
        PADDED,
        REPEATED_REDUCTION,
        STRAGGLER,
        STALL,
        LOAD_IMBALANCE,
        SHARED_CORES,
        IMBALANCE,
        WRONG_REDUCTION,
        OVERLAP,
        PIPELINE_BUBBLES,
        SERIAL_RECEIVES,
        SERIAL_SENDS,
        OBJECT_COLLECTIVES,
        REDUNDANT_BARRIER,
        UNCHANGED_BROADCAST,
        REDUCE_THEN_BROADCAST,
        METRICS_EACH_STEP,
        GATHERED_LOGITS,
        DEPENDENT_COMMUNICATION,
        SUMS_APART,
        GROWING_STEPS,
        BROADCAST_BUFFERS,
        SLOW_LINK,
        SINGLE_UNIT,
        COPIES,
    ),
)


@dataclass(frozen=True, slots=True, eq=False)
class Reported:
    """A finding that is not muted.

    Attributes:
        rule: The rule that found it.
        finding: The finding.
        cure: The changes that cure it; "" if a replay can make none, None if none saves.
        saving: Their saving.
        row: Its row in the table.
    """

    rule: Rule
    finding: Finding
    cure: str | None
    saving: Saving
    row: dict[str, Any]


def findings(frames: Frames) -> pd.DataFrame:
    """Return a row per finding: faults first, findings about the machine last, by saved time."""
    return _table([each.row for each in reported(frames)])


@cached_per_run
def reported(frames: Frames) -> list[Reported]:
    """Return each finding that is not muted, in the order of the table.

    `finding=3` is the third of them.
    """
    every = []
    for rule, finding in detected(frames):
        cure = cure_of(rule, finding)
        saving = saving_of(frames, {cure: [finding]}, rule)
        row = table_row(frames, rule, finding) | saving_columns(frames, saving)
        every.append(Reported(rule, finding, cure, saving, row))
    places = in_order(pd.DataFrame([each.row for each in every], columns=_NAMES)).index
    ordered = [every[place] for place in places]
    for number, each in enumerate(ordered, start=1):
        each.row["change"] = _replayed(each.saving, {each.cure or "": [number]})
    return ordered


@cached_per_run
def grouped(frames: Frames) -> pd.DataFrame:
    """Return the table with a row for similar findings, whose changes are replayed together."""
    rows = [row for row, _ in grouped_savings(frames)]
    return _table(in_order(_table(rows)).to_dict("records"))


@cached_per_run
def grouped_savings(frames: Frames) -> list[tuple[dict[str, Any], Saving]]:
    """Return a row for similar findings, and what their cures save together."""
    every = reported(frames)
    numbers: dict[Any, list[int]] = {}
    for number, each in enumerate(every, start=1):
        numbers.setdefault(likeness(each.row), []).append(number)
    return [_united(frames, every, own) for own in numbers.values()]


def _united(
    frames: Frames, every: Sequence[Reported], numbers: Sequence[int]
) -> tuple[dict[str, Any], Saving]:
    """Return the row of findings that are alike, by their numbers, and their saving."""
    own = [every[number - 1] for number in numbers]
    if len(own) == 1:
        return own[0].row, own[0].saving
    found: dict[str | None, list[Finding]] = {}
    cures: dict[str, list[int]] = {}
    for number, each in zip(numbers, own, strict=True):
        found.setdefault(each.cure, []).append(each.finding)
        if each.cure:
            cures.setdefault(each.cure, []).append(number)
    saving = saving_of(frames, found, own[0].rule)
    row = united([each.row for each in own])
    return row | saving_columns(frames, saving) | {"change": _replayed(saving, cures)}, saving


def _replayed(saving: Saving, cures: Mapping[str, Sequence[int]]) -> str:
    """Return the changes of a saving, by the numbers of findings; empty without a replay."""
    return text_of(cures) if saving.outcome is not None else ""


_NAMES = [column.name for column in COLUMNS]


def _table(rows: Sequence[dict[Any, Any]]) -> pd.DataFrame:
    return typed(pd.DataFrame(rows, columns=_NAMES), COLUMNS)


def detected(frames: Frames) -> list[tuple[Rule, Finding]]:
    """Return each finding that is not muted with its rule, in the order of rules."""
    return [(rule, finding) for rule, finding, reason in _evaluated(frames) if not reason]


@cached_per_run
def _evaluated(frames: Frames) -> list[tuple[Rule, Finding, str]]:
    """Return all findings this trace can answer: rule, finding, and the reason if muted."""
    if error := unknown_rules(frames.settings, [rule.name for rule in RULES]):
        raise error
    if not frames.num_calls:
        return []
    lacking = unanswered(frames)
    every = [
        (rule, replace(each, title=relative(frames, each.title)))
        for rule in RULES
        if rule.name not in lacking
        for each in rule.find(frames)
    ]
    return [(rule, each, _muted_because(frames, rule, each)) for rule, each in every]


def _muted_because(frames: Frames, rule: Rule, finding: Finding) -> str:
    """Return the reason for which the settings mute a finding; "" if they do not."""
    module = finding.module or finding.calls.shared.get("module", "")
    place = rule.name, module, finding.calls.place
    return next((each.reason for each in frames.settings.muted if each.mutes(*place)), "")


def muted(frames: Frames) -> dict[tuple[str, str], int]:
    """Count the findings that the settings mute, by rule and reason."""
    return Counter((rule.name, reason) for rule, _, reason in _evaluated(frames) if reason)


@cached_per_run
def unanswered(frames: Frames) -> dict[str, str]:
    """Return the rules that this trace cannot answer, by name, with what it lacks."""
    return {rule.name: lack for rule in RULES if (lack := rule.lacks(frames))}


def evaluated_note(frames: Frames) -> str:
    """Return how many of the rules could be evaluated, in words; empty if all of them could."""
    num_lacking = len(unanswered(frames))
    if not num_lacking:
        return ""
    num_evaluated = len(RULES) - num_lacking
    return f"{num_evaluated} of {len(RULES)} rules could be evaluated"


FINDINGS = Analysis(
    "findings",
    "Findings",
    "What could be improved, how, and what would it save?",
    findings,
    COLUMNS,
)
