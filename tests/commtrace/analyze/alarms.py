"""Findings that no healthy program has, savings that break their law, and inconsistent ranks."""

from __future__ import annotations

from commtrace.analyze import CATALOG, Frames
from commtrace.analyze.findings import detected
from commtrace.analyze.findings.apart import SUMS_APART
from commtrace.analyze.findings.growing import GROWING_STEPS
from commtrace.analyze.findings.imbalance import IMBALANCE
from commtrace.analyze.findings.logits import GATHERED_LOGITS
from commtrace.analyze.findings.metrics import METRICS_EACH_STEP
from commtrace.analyze.findings.overlap_lost import OVERLAP
from commtrace.analyze.findings.shared_cores import SHARED_CORES
from commtrace.analyze.findings.slow_link import SLOW_LINK
from commtrace.analyze.findings.wrong_reduction import WRONG_REDUCTION
from tests.commtrace.analyze.findings.savings_law import broken_laws

RULES = (
    *(IMBALANCE, OVERLAP, WRONG_REDUCTION, METRICS_EACH_STEP, GATHERED_LOGITS, SUMS_APART),
    *(GROWING_STEPS, SLOW_LINK),
)


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
