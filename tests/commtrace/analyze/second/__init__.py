"""A second computation of every table of the catalog, by plain loops over the rows of a trace.

`SECOND` computes the rows of each analysis without pandas, without the analysis' own functions, and
mostly by another algorithm. Columns with sentences are listed as not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from commtrace.analyze import CATALOG
from tests.commtrace.analyze.second.checked import consistency, divergences, findings
from tests.commtrace.analyze.second.critical import (
    OPERATOR,
    PLACE,
    critical_path,
    critical_share,
    op_slack,
    slack,
)
from tests.commtrace.analyze.second.device import gpu_time, kernel_patterns
from tests.commtrace.analyze.second.fingerprinted import replicas, tensors
from tests.commtrace.analyze.second.gradients import unreduced
from tests.commtrace.analyze.second.late import start_skew
from tests.commtrace.analyze.second.lost import overlap_lost
from tests.commtrace.analyze.second.measured import by_module, by_rank, by_step, flat
from tests.commtrace.analyze.second.moved import bandwidth, busbw_after_arrival
from tests.commtrace.analyze.second.piped import bubbles, pipeline_schedule, pipeline_stages
from tests.commtrace.analyze.second.reported import calls, facts, matrix, sizes
from tests.commtrace.analyze.second.routed import all_to_all_splits, expert_load
from tests.commtrace.analyze.second.run import Run
from tests.commtrace.analyze.second.waited import (
    activity,
    balance,
    overlap,
    rank_waits,
    skew,
    stragglers,
    wait_states,
)

__all__ = ["COMPARED", "SECOND", "Run", "Second"]


@dataclass(frozen=True, slots=True)
class Second:
    """Second computation of a table.

    Attributes:
        rows: Computes the rows.
        keys: Columns that identify a row.
        ignored: Columns that are not compared.
    """

    rows: Callable[[Run], list[dict[str, Any]]]
    keys: Sequence[str]
    ignored: Sequence[str] = ()


_SOURCE = ("source_file", "source_line", "source_function", "via")


def _flat(*keys: str) -> Second:
    return Second(lambda run: flat(run, keys), keys)


def _by_kind(run: Run) -> list[dict[str, Any]]:
    return [
        row | {"busbw_after_arrival_bytes_per_s": busbw_after_arrival(run, row["kind"])}
        for row in flat(run, ["kind"])
    ]


OF_TENSOR = ("step", "phase", "role", "module", "module_call", "name", "op")

OF_EXCHANGE = ("group", "module", "phase", "direction", "source_file", "source_line", "step")

SECOND: dict[str, Second] = {
    "by_kind": Second(_by_kind, ["kind"]),
    "by_phase": _flat("phase"),
    "by_op": _flat("op", "kind"),
    "by_group": _flat("group", "mesh_axis", "group_size"),
    "by_axis": _flat("mesh_axis"),
    "by_source": _flat(*_SOURCE),
    "by_region": _flat("region"),
    "by_module": Second(by_module, ["module"]),
    "by_step": Second(by_step, ["step"]),
    "by_rank": Second(by_rank, ["rank"]),
    "overlap": Second(overlap, ["step", "rank"]),
    "overlap_lost": Second(
        overlap_lost,
        [*("kind", "mesh_axis", "module", "phase", "source_file", "source_line", "reason")],
        ["behind", "advice"],
    ),
    "gpu_time": Second(gpu_time, ["rank", "device", "stream", "step"]),
    "balance": Second(balance, ["step"]),
    "wait_states": Second(wait_states, ["state", "kind", "mesh_axis"]),
    "rank_waits": Second(rank_waits, ["rank", "state"]),
    "skew": Second(skew, ["group", "kind"]),
    "stragglers": Second(
        stragglers,
        ["rank", "kind", "mesh_axis", "phase", "module", "source_file", "source_line"],
    ),
    "start_skew": Second(start_skew, ["group", "number"]),
    "critical_path": Second(critical_path, ["at_ns"]),
    "critical_share": Second(critical_share, ["work", "rank", *PLACE]),
    "slack": Second(slack, PLACE),
    "op_slack": Second(op_slack, OPERATOR),
    "bandwidth": Second(bandwidth, ["kind", "group", "from_bytes", "algorithm", "protocol"]),
    "sizes": Second(sizes, ["kind", "group", "from_bytes"]),
    "matrix": Second(matrix, ["source", "target"]),
    "all_to_all_splits": Second(all_to_all_splits, [*OF_EXCHANGE, "source", "target"]),
    "expert_load": Second(expert_load, [*OF_EXCHANGE, "rank", "expert"]),
    "pipeline_stages": Second(pipeline_stages, ["pipeline", "stage", "rank"]),
    "bubbles": Second(bubbles, ["rank", "start_ns"]),
    "pipeline_schedule": Second(
        pipeline_schedule,
        ["pipeline", "step", "round", "rank", "stage", "micro_batch", "action"],
    ),
    "kernel_patterns": Second(kernel_patterns, ["name", "kind", "is_communication"]),
    "tensors": Second(tensors, [*OF_TENSOR, "occurrence", "shape", "layout", "rank"]),
    "replicas": Second(replicas, [*OF_TENSOR, "source_line", "ranks"]),
    # Random runs lack the ranks' own gradients, which gradients/test_sums.py constructs.
    "gradients": Second(unreduced, ["name", "ranks"], ["explanation"]),
    "consistency": Second(
        consistency,
        ["problem", "group", "number", "ranks"],
        ["expected", "found", "source", "explanation", "at_ns"],
    ),
    # Calls, lines and causes are those of tests/hangs, and of divergence/test_sequences.py.
    "divergences": Second(
        divergences,
        ["problem", "group", "number", "ranks"],
        [
            *(
                "compared",
                "before",
                "common",
                "common_source",
                "own",
                "own_source",
                "instead",
                "instead_source",
            ),
            *("branch", "event", "event_rank", "explanation", "verdict", "at_ns"),
        ],
    ),
    "findings": Second(
        findings,
        ["rule", "evidence", "cost_bytes"],
        # Savings are compared with replayed runs: tests/commtrace/analyze/findings/test_savings.py.
        [
            *("title", "advice", "change"),
            *("num_untimed", "cost_ns", "most_ns", "error_ns", "share"),
        ],
    ),
    "activity": Second(activity, ["rank", "start_ns"]),
    "calls": Second(calls, ["rank", "id"]),
    "facts": Second(facts, ["fact"]),
}
OTHERWISE = {"whatif": "programs that are changed and simulated: replay/test_random_programs.py"}
"""Analyses without a second computation by loops, and what they are compared with instead."""
COMPARED = {name: each for name, each in CATALOG.items() if name not in OTHERWISE}
OF_TWO_RUNS = ["scope", "module", "op", "kind", "group", "phase"]
"""Columns that identify a row of a difference."""
