"""Findings of load and lost overlap, savings that are too large, and problems of consistency."""

from __future__ import annotations

from commtrace.analyze import CATALOG, Frames
from commtrace.analyze.findings.imbalance import IMBALANCE
from commtrace.analyze.findings.overlap_lost import OVERLAP
from commtrace.analyze.findings.shared_cores import SHARED_CORES
from commtrace.analyze.findings.wrong_reduction import WRONG_REDUCTION
from tests.commtrace.analyze.findings.savings_law import broken_laws

RULES = [rule.name for rule in (IMBALANCE, OVERLAP, WRONG_REDUCTION)]


def alarms(frames: Frames) -> list[str]:
    """Titles of findings and explanations of problems that no healthy program has.

    Stalls and stragglers are not among them: ranks that share a processor do delay each other. Nor
    is the idle time of pipelines, whose tiny stages do wait for transfers, nor lost overlap
    where ranks had no core for longer, since hiding a transfer on a host needs one.
    """
    findings = CATALOG["findings"].function(frames)
    without_core = findings.loc[findings["rule"] == SHARED_CORES.name, "cost_ns"].sum()
    needs_core = (findings["rule"] == OVERLAP.name) & (findings["cost_ns"] <= without_core)
    titles = findings.loc[findings["rule"].isin(RULES) & ~needs_core, "title"]
    problems = CATALOG["consistency"].function(frames)
    parted = CATALOG["divergences"].function(frames)
    return [*titles, *broken_laws(frames), *problems["explanation"], *parted["explanation"]]
