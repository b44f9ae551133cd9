"""Findings: the rules for avoidable communication, and their results as a table.

Costs are estimated savings per rank, as the mean over ranks, and capped by the time for which their
calls blocked ranks (`findings.savings`). Rules that lack data in a trace are
listed in `unanswered`, so that an empty result is not mistaken for a clean run. Findings muted by
the settings are omitted and counted (`muted`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pandas as pd

from commtrace.analyze.findings.each_step import (
    OBJECT_COLLECTIVES,
    REDUCE_THEN_BROADCAST,
    REDUNDANT_BARRIER,
    UNCHANGED_BROADCAST,
)
from commtrace.analyze.findings.finding import (
    COLUMNS,
    MACHINE,
    Finding,
    Rule,
    in_order,
    table_row,
)
from commtrace.analyze.findings.grouping import by_missing_data, grouped
from commtrace.analyze.findings.hang import HANG
from commtrace.analyze.findings.imbalance import IMBALANCE
from commtrace.analyze.findings.late_in_turn import LOAD_IMBALANCE
from commtrace.analyze.findings.overlap_lost import OVERLAP
from commtrace.analyze.findings.pipelines import PIPELINE_BUBBLES
from commtrace.analyze.findings.receives import SERIAL_RECEIVES
from commtrace.analyze.findings.reduced import REPEATED_REDUCTION
from commtrace.analyze.findings.repeated import (
    ALL_REDUCE_THEN_SHARD,
    PING_PONG,
    REPEATED_ALL_GATHER,
)
from commtrace.analyze.findings.savings import capped
from commtrace.analyze.findings.sends import SERIAL_SENDS
from commtrace.analyze.findings.shared_cores import SHARED_CORES
from commtrace.analyze.findings.stragglers import STALL, STRAGGLER
from commtrace.analyze.findings.traffic import (
    FLOAT32_MESSAGES,
    OUTSIDE,
    PADDED,
    REPLICATION_FALLBACK,
    SMALL_MESSAGES,
    UNUSED_PARAMETER_FLAGS,
)
from commtrace.analyze.findings.wrong_reduction import WRONG_REDUCTION
from commtrace.analyze.run.analysis import Analysis, typed
from commtrace.analyze.run.cached_per_run import cached_per_run
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.program_folder import relative
from commtrace.settings import unknown_rules

__all__ = [
    "FINDINGS",
    "RULES",
    "Rule",
    "by_missing_data",
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
    ),
)


def findings(frames: Frames) -> pd.DataFrame:
    """Return a row per finding: faults first, findings about the machine last, by cost in time."""
    rows = [row for _, _, row in reported(frames)]
    table = pd.DataFrame(rows, columns=[column.name for column in COLUMNS])
    return typed(in_order(table), COLUMNS)


@cached_per_run
def _evaluated(frames: Frames) -> list[tuple[Rule, Finding, dict[str, Any], str]]:
    """Return all findings this trace can answer: rule, finding, row, and the reason if muted."""
    if error := unknown_rules(frames.settings, [rule.name for rule in RULES]):
        raise error
    if not frames.num_calls:
        return []
    lacking = unanswered(frames)
    rules = [rule for rule in RULES if rule.name not in lacking]
    every = [
        (rule, replace(each, title=relative(frames, each.title)))
        for rule in rules
        for each in rule.find(frames)
    ]
    reasons = [_muted_because(frames, rule, each) for rule, each in every]
    counted = [pair for pair, reason in zip(every, reasons, strict=True) if not reason]
    of_machine = [rule.concerns == MACHINE for rule, _ in counted]
    kept = iter(capped(frames, [each for _, each in counted], of_machine))
    results = []
    for (rule, each), reason in zip(every, reasons, strict=True):
        finding = each if reason else next(kept)
        results.append((rule, finding, table_row(frames, rule, finding), reason))
    return results


def _muted_because(frames: Frames, rule: Rule, finding: Finding) -> str:
    """Return the reason for which the settings mute a finding; "" if they do not."""
    row = table_row(frames, rule, finding)
    place = rule.name, str(row["module"]), finding.calls.place
    return next((each.reason for each in frames.settings.muted if each.mutes(*place)), "")


def reported(frames: Frames) -> list[tuple[Rule, Finding, dict[str, Any]]]:
    """Return each finding that is not muted, with its rule and its row in the table."""
    return [(rule, finding, row) for rule, finding, row, reason in _evaluated(frames) if not reason]


def muted(frames: Frames) -> dict[tuple[str, str], int]:
    """Count the findings that the settings mute, by rule and reason."""
    return Counter((rule.name, reason) for rule, _, _, reason in _evaluated(frames) if reason)


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
