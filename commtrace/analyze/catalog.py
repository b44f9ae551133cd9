"""Every analysis by name: what the command line, the page, notebooks and tests choose from."""

from __future__ import annotations

from commtrace.analyze.analysis import Analysis
from commtrace.analyze.by_kind import BY_KIND
from commtrace.analyze.by_module import BY_MODULE
from commtrace.analyze.by_op import BY_OP
from commtrace.analyze.by_phase import BY_PHASE
from commtrace.analyze.by_rank import BY_RANK
from commtrace.analyze.by_step import BY_STEP
from commtrace.analyze.calls import CALLS
from commtrace.analyze.consistency import CONSISTENCY
from commtrace.analyze.facts import FACTS

CATALOG: dict[str, Analysis] = {
    analysis.name: analysis
    for analysis in (
        BY_KIND,
        BY_PHASE,
        BY_MODULE,
        BY_OP,
        BY_STEP,
        BY_RANK,
        CONSISTENCY,
        CALLS,
        FACTS,
    )
}
