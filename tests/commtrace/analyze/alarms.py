"""Findings of load and lost overlap, savings that break their law, and problems of consistency."""

from __future__ import annotations

from commtrace.analyze import CATALOG, Frames
from commtrace.analyze.findings import detected
from commtrace.analyze.findings.imbalance import IMBALANCE
from commtrace.analyze.findings.overlap_lost import OVERLAP
from commtrace.analyze.findings.shared_cores import SHARED_CORES
from commtrace.analyze.findings.wrong_reduction import WRONG_REDUCTION
from tests.commtrace.analyze.findings.savings_law import broken_laws

RULES = (IMBALANCE, OVERLAP, WRONG_REDUCTION)


def alarms(frames: Frames) -> list[str]:
    """Titles of findings and explanations of problems that no healthy program has.

    Stalls and stragglers are not among them: ranks that share a processor do delay each other. Nor
    is the idle time of pipelines, whose tiny stages do wait for transfers, nor lost overlap
    where ranks had no core for longer, since hiding a transfer on a host needs one.
    """
    found = detected(frames)
    without_core = sum(each.calls.lost_ns for rule, each in found if rule is SHARED_CORES)
    titles = [
        each.title
        for rule, each in found
        if rule in RULES and not (rule is OVERLAP and each.calls.lost_ns <= without_core)
    ]
    problems = CATALOG["consistency"].function(frames)
    parted = CATALOG["divergences"].function(frames)
    return [*titles, *broken_laws(frames), *problems["explanation"], *parted["explanation"]]
