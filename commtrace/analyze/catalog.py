"""All analyses by name: the catalog that the command line, the page, notebooks and tests use."""

from __future__ import annotations

from commtrace.analyze.activity import ACTIVITY
from commtrace.analyze.all_to_all_splits import ALL_TO_ALL_SPLITS
from commtrace.analyze.analysis import Analysis
from commtrace.analyze.balance import BALANCE
from commtrace.analyze.bandwidth import BANDWIDTH
from commtrace.analyze.by_kind import BY_KIND
from commtrace.analyze.by_module import BY_MODULE
from commtrace.analyze.by_op import BY_OP
from commtrace.analyze.by_phase import BY_PHASE
from commtrace.analyze.by_place import FLAT
from commtrace.analyze.by_rank import BY_RANK
from commtrace.analyze.by_step import BY_STEP
from commtrace.analyze.calls import CALLS
from commtrace.analyze.consistency import CONSISTENCY
from commtrace.analyze.divergence import DIVERGENCES
from commtrace.analyze.expert_load import EXPERT_LOAD
from commtrace.analyze.facts import FACTS
from commtrace.analyze.findings import FINDINGS
from commtrace.analyze.gpu_time import GPU_TIME
from commtrace.analyze.gradients import GRADIENTS
from commtrace.analyze.kernel_patterns import KERNEL_PATTERNS
from commtrace.analyze.matrix import MATRIX
from commtrace.analyze.overlap import OVERLAP
from commtrace.analyze.overlap_lost.table import OVERLAP_LOST
from commtrace.analyze.pipelines.bubbles import BUBBLES
from commtrace.analyze.pipelines.schedule import SCHEDULE
from commtrace.analyze.pipelines.stages import STAGES
from commtrace.analyze.rank_waits import RANK_WAITS
from commtrace.analyze.sizes import SIZES
from commtrace.analyze.skew import SKEW
from commtrace.analyze.start_skew import START_SKEW
from commtrace.analyze.stragglers import STRAGGLERS
from commtrace.analyze.values import REPLICAS, TENSORS
from commtrace.analyze.wait_states import WAIT_STATES

CATALOG: dict[str, Analysis] = {
    analysis.name: analysis
    for analysis in (
        *(BY_KIND, BY_MODULE, BY_OP, *FLAT, BY_PHASE, BY_STEP, BY_RANK),
        *(
            OVERLAP,
            OVERLAP_LOST,
            GPU_TIME,
            STRAGGLERS,
            WAIT_STATES,
            RANK_WAITS,
            SKEW,
            START_SKEW,
            BALANCE,
        ),
        *(SIZES, BANDWIDTH, MATRIX, KERNEL_PATTERNS),
        *(ALL_TO_ALL_SPLITS, EXPERT_LOAD),
        *(STAGES, BUBBLES, SCHEDULE),
        *(TENSORS, REPLICAS, GRADIENTS),
        *(CONSISTENCY, DIVERGENCES, FINDINGS, ACTIVITY, CALLS, FACTS),
    )
}

FORMER_NAMES = {"latecomers": "stragglers"}
"""Names of analyses in earlier versions, still accepted."""


def analysis_named(name: str) -> Analysis | None:
    """Return the analysis with a current or former name; None if there is none."""
    return CATALOG.get(FORMER_NAMES.get(name, name))
