"""What could be better in a run: the rules, and their findings as a table.

Costs are estimates of what could be saved, as one rank has it: the mean over ranks. A rule that a
trace cannot answer says what the trace lacks (`unanswered`), so that no finding of it is not taken
for nothing to find.
"""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.analysis import Analysis, typed
from commtrace.analyze.findings.alike import by_lack, together
from commtrace.analyze.findings.finding import COLUMNS, Finding, Rule, table_row
from commtrace.analyze.findings.late import LATE, STALL, UNEVEN
from commtrace.analyze.findings.reduced import REDUCED_AGAIN
from commtrace.analyze.findings.repeated import GATHERED_AGAIN, PING_PONG, REDUCED_TO_BE_CUT
from commtrace.analyze.findings.traffic import (
    OUTSIDE,
    PADDED,
    REPLICATED,
    SMALL_MESSAGES,
    WIDE_TYPES,
)
from commtrace.analyze.frame import Frames
from commtrace.analyze.once import once

__all__ = ["FINDINGS", "RULES", "Rule", "by_lack", "findings", "found", "together", "unanswered"]

RULES: tuple[Rule, ...] = (
    *(GATHERED_AGAIN, REDUCED_TO_BE_CUT, PING_PONG, SMALL_MESSAGES, WIDE_TYPES),
    *(REPLICATED, OUTSIDE, PADDED, REDUCED_AGAIN, LATE, STALL, UNEVEN),
)


def findings(frames: Frames) -> pd.DataFrame:
    """One row per finding, the one that costs most time first."""
    rows = [table_row(frames, rule, finding) for rule, finding in found(frames)]
    table = pd.DataFrame(rows, columns=[column.name for column in COLUMNS])
    by = ["cost_ns", "cost_bytes", "rule", "title"]
    return typed(table.sort_values(by, ascending=[False, False, True, True]), COLUMNS)


@once
def found(frames: Frames) -> list[tuple[Rule, Finding]]:
    """Each finding with its rule, in the order of the rules."""
    lacking = unanswered(frames)
    return [
        (rule, finding)
        for rule in RULES
        if rule.name not in lacking
        for finding in rule.find(frames)
    ]


@once
def unanswered(frames: Frames) -> dict[str, str]:
    """By name of a rule that this trace cannot answer, what it lacks."""
    told = {rule.name: rule.lacks(frames) for rule in RULES}
    return {name: lack for name, lack in told.items() if lack}


FINDINGS = Analysis(
    "findings",
    "Findings",
    "What could be better, what would it save, and how?",
    findings,
    COLUMNS,
)
