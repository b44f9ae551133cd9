"""Findings: the rules for avoidable communication, and their results as a table.

Costs are estimates of what could be saved, as one rank has it: the mean over ranks. A rule that a
trace cannot answer says what the trace lacks (`unanswered`), so that an empty result is not
mistaken for a clean run. What the settings mute is left out, and counted (`muted`).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pandas as pd

from commtrace.analyze.analysis import Analysis, typed
from commtrace.analyze.cached_per_run import once
from commtrace.analyze.findings.finding import COLUMNS, Finding, Rule, table_row
from commtrace.analyze.findings.grouping import by_lack, together
from commtrace.analyze.findings.reduced import REDUCED_AGAIN
from commtrace.analyze.findings.repeated import GATHERED_AGAIN, PING_PONG, REDUCED_TO_BE_CUT
from commtrace.analyze.findings.stragglers import LATE, STALL, UNEVEN
from commtrace.analyze.findings.traffic import (
    OUTSIDE,
    PADDED,
    REPLICATED,
    SMALL_MESSAGES,
    UNNEEDED_FLAGS,
    WIDE_TYPES,
)
from commtrace.analyze.frame import Frames
from commtrace.settings import unknown_rules

__all__ = [
    "FINDINGS",
    "RULES",
    "Rule",
    "by_lack",
    "findings",
    "muted",
    "together",
    "told",
    "unanswered",
]

RULES: tuple[Rule, ...] = (
    *(GATHERED_AGAIN, REDUCED_TO_BE_CUT, PING_PONG, SMALL_MESSAGES, WIDE_TYPES),
    *(UNNEEDED_FLAGS, REPLICATED, OUTSIDE, PADDED, REDUCED_AGAIN, LATE, STALL, UNEVEN),
)


def findings(frames: Frames) -> pd.DataFrame:
    """Return one row per finding, the largest cost in time first."""
    rows = [row for _, _, row in told(frames)]
    table = pd.DataFrame(rows, columns=[column.name for column in COLUMNS])
    by = ["cost_ns", "cost_bytes", "rule", "title"]
    return typed(table.sort_values(by, ascending=[False, False, True, True]), COLUMNS)


@once
def _judged(frames: Frames) -> list[tuple[Rule, Finding, dict[str, Any], str]]:
    """Return all findings this trace can answer: rule, finding, row, and the reason if muted."""
    if error := unknown_rules(frames.settings, [rule.name for rule in RULES]):
        raise error
    lacking = unanswered(frames)
    judged = []
    for rule in RULES:
        for finding in rule.find(frames) if rule.name not in lacking else ():
            row = table_row(frames, rule, finding)
            place = rule.name, str(row["module"]), str(row["source"])
            reasons = [each.reason for each in frames.settings.muted if each.mutes(*place)]
            judged.append((rule, finding, row, reasons[0] if reasons else ""))
    return judged


def told(frames: Frames) -> list[tuple[Rule, Finding, dict[str, Any]]]:
    """Return each finding that is not muted, with its rule and its row in the table."""
    return [(rule, finding, row) for rule, finding, row, reason in _judged(frames) if not reason]


def muted(frames: Frames) -> dict[tuple[str, str], int]:
    """Count the findings that the settings mute, by rule and reason."""
    return Counter((rule.name, reason) for rule, _, _, reason in _judged(frames) if reason)


@once
def unanswered(frames: Frames) -> dict[str, str]:
    """Return the rules that this trace cannot answer, by name, with what it lacks."""
    told = {rule.name: rule.lacks(frames) for rule in RULES}
    return {name: lack for name, lack in told.items() if lack}


FINDINGS = Analysis(
    "findings",
    "Findings",
    "What could be better, what would it save, and how?",
    findings,
    COLUMNS,
)
