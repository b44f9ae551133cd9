"""The analysis `consistency`: all ranks make the same calls, in an order that cannot deadlock."""

from __future__ import annotations

from commtrace.analyze.consistency.absences import NOT_COMPARED
from commtrace.analyze.consistency.check import CONSISTENCY, consistency
from commtrace.analyze.consistency.compared import (
    BAD,
    GOOD,
    NEUTRAL,
    PROPERTIES,
    Comparison,
    compared,
    result_of,
)

__all__ = [
    "BAD",
    "CONSISTENCY",
    "GOOD",
    "NEUTRAL",
    "NOT_COMPARED",
    "PROPERTIES",
    "Comparison",
    "compared",
    "consistency",
    "result_of",
]
