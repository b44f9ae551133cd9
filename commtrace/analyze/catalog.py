"""All analyses by name: the catalog that the command line, the page, notebooks and tests use."""

from __future__ import annotations

from commtrace.analyze.consistency import CONSISTENCY
from commtrace.analyze.devices.gpu_time import GPU_TIME
from commtrace.analyze.devices.kernel_patterns import KERNEL_PATTERNS
from commtrace.analyze.divergence import DIVERGENCES
from commtrace.analyze.experts.all_to_all_splits import ALL_TO_ALL_SPLITS
from commtrace.analyze.experts.expert_load import EXPERT_LOAD
from commtrace.analyze.facts import FACTS
from commtrace.analyze.findings import FINDINGS
from commtrace.analyze.gradients import GRADIENTS
from commtrace.analyze.overlap.overlap import OVERLAP
from commtrace.analyze.overlap.overlap_lost.table import OVERLAP_LOST
from commtrace.analyze.pipelines.bubbles import BUBBLES
from commtrace.analyze.pipelines.schedule import SCHEDULE
from commtrace.analyze.pipelines.stages import STAGES
from commtrace.analyze.replay.critical_path import CRITICAL_PATH
from commtrace.analyze.replay.critical_share import CRITICAL_SHARE
from commtrace.analyze.replay.slack import OP_SLACK, SLACK
from commtrace.analyze.run.analysis import Analysis
from commtrace.analyze.traffic.bandwidth import BANDWIDTH
from commtrace.analyze.traffic.by_module import BY_MODULE
from commtrace.analyze.traffic.by_place import FLAT
from commtrace.analyze.traffic.by_rank import BY_RANK
from commtrace.analyze.traffic.by_step import BY_STEP
from commtrace.analyze.traffic.calls import CALLS
from commtrace.analyze.traffic.matrix import MATRIX
from commtrace.analyze.traffic.sizes import SIZES
from commtrace.analyze.values import REPLICAS, TENSORS
from commtrace.analyze.waits.activity import ACTIVITY
from commtrace.analyze.waits.balance import BALANCE
from commtrace.analyze.waits.rank_waits import RANK_WAITS
from commtrace.analyze.waits.skew import SKEW
from commtrace.analyze.waits.start_skew import START_SKEW
from commtrace.analyze.waits.stragglers import STRAGGLERS
from commtrace.analyze.waits.wait_states import WAIT_STATES
from commtrace.analyze.whatif.table import WHATIF

CATALOG: dict[str, Analysis] = {
    analysis.name: analysis
    for analysis in (
        *(FLAT[0], BY_MODULE, *FLAT[1:], BY_STEP, BY_RANK),
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
        *(CRITICAL_PATH, CRITICAL_SHARE, SLACK, OP_SLACK),
        *(SIZES, BANDWIDTH, MATRIX, KERNEL_PATTERNS),
        *(ALL_TO_ALL_SPLITS, EXPERT_LOAD),
        *(STAGES, BUBBLES, SCHEDULE),
        *(TENSORS, REPLICAS, GRADIENTS),
        *(CONSISTENCY, DIVERGENCES, FINDINGS, WHATIF, ACTIVITY, CALLS, FACTS),
    )
}

FORMER_NAMES = {"latecomers": "stragglers"}
"""Names of analyses in earlier versions, still accepted."""


def analysis_named(name: str) -> Analysis | None:
    """Return the analysis with a current or former name; None if there is none."""
    return CATALOG.get(FORMER_NAMES.get(name, name))
