"""Every analysis compared with a second, independent computation of all of its columns.

The traces are random: in them, everything varies and many values are unknown; a training with a
straggler; a run on a mesh with an injected straggler and known overlap; layouts that revert;
devices with random kernels; snapshots of communicators; and programs with a single injected fault
each.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from benchmarks.large_run import large_trace
from commtrace.analyze import CATALOG, Analysis, Frames, load
from commtrace.analyze.comparisons.diff import diff
from commtrace.analyze.findings import RULES
from commtrace.schema import ALL_USED
from commtrace.tracefile import Trace
from tests.benchmarks.test_large_run import PLAN
from tests.commtrace.analyze.consistency.runs import Program, changed, crossed, training, without
from tests.commtrace.analyze.device_rows import device_trace
from tests.commtrace.analyze.each_step_rows import (
    BARRIER,
    BUFFERS,
    COPIES,
    OBJECTS,
    UNIT,
    broadcasts,
    in_steps,
    received,
    reduced_to_root,
    shifted,
)
from tests.commtrace.analyze.flow_rows import flowing
from tests.commtrace.analyze.metric_rows import collected
from tests.commtrace.analyze.pipelines.programs import piped_trace
from tests.commtrace.analyze.routed import routed_trace
from tests.commtrace.analyze.rows import (
    accumulated,
    call,
    flagged,
    late_in_turn,
    late_trace,
    layouts_trace,
    random_trace,
    stalled_once,
    trace_of,
)
from tests.commtrace.analyze.second import COMPARED, OF_TWO_RUNS, SECOND, Run
from tests.commtrace.analyze.second.checked import has_cycle
from tests.commtrace.analyze.second.compare import differences
from tests.commtrace.analyze.second.differing import diff as diff_by_loops
from tests.commtrace.analyze.snapshots import snapshot_trace
from tests.commtrace.analyze.training import training_trace
from tests.commtrace.analyze.trend_rows import growing, in_groups


def _of(program: Program, rows: list[Any] | None = None) -> Trace:
    rows = program.rows if rows is None else rows
    return trace_of(rows, num_ranks=len(program.ranks), groups=program.groups)


def _faulty() -> dict[str, Trace]:
    healthy = training()
    changes = {
        "kind": ("all_reduce", {"kind": "all_gather"}),
        "reduce_op": ("all_reduce", {"reduce_op": "max"}),
        "root": ("broadcast", {"root": 1}),
        "dtype": ("all_gather", {"dtype": "bfloat16"}),
        "size": ("all_gather", {"payload_bytes": 63}),
    }
    traces = {
        field: _of(healthy, changed(healthy.rows, 2, kind, value))
        for field, (kind, value) in changes.items()
    }
    return traces | {
        "healthy": _of(healthy),
        "left out": _of(healthy, without(healthy.rows, 3, "barrier", -1)),
        "not received": _of(healthy, without(healthy.rows, 3, "recv", -1)),
        "crossed": _of(crossed(4, [3])),
        "splits": trace_of(unlike_ends(), num_ranks=3),
        **{f"snapshots{seed}": snapshot_trace(seed) for seed in range(8)},
    }


def unlike_ends() -> list[Any]:
    """All-to-alls; the second sends rank 2 more than it expects."""
    sent = ("4,4,4", "4,8,4", "4,4,4"), ("4,4,8", "4,4,8", "4,4,4")
    received = ("4,4,4", "4,8,4", "4,4,4"), ("4,4,4",) * 3
    return [
        call(
            rank=rank, id=number, seq=number, kind="all_to_all", at=9 * number,
            until=9 * number + 5,
            input_splits=sent[number][rank], output_splits=received[number][rank],
        )
        for number in range(2)
        for rank in range(3)
    ]  # fmt: skip


FAULTY = _faulty()
TRACES: dict[str, Trace] = {
    **{f"random{seed}": random_trace(seed) for seed in range(4)},
    **{f"layouts{seed}": layouts_trace(seed) for seed in range(2)},
    **{f"device{seed}": device_trace(seed) for seed in range(3)},
    **{f"piped{seed}": piped_trace(seed) for seed in range(2)},
    **{f"routed{seed}": routed_trace(seed) for seed in range(2)},
    "training": training_trace(late_rank=2),
    "mesh": large_trace(PLAN),
    "objects": in_steps(OBJECTS),
    "barriers": in_steps(BARRIER),
    "broadcasts": broadcasts(),
    "receives": received(late=1),
    "reduced to a root": reduced_to_root(),
    "ring": shifted(),
    "metrics": collected(),
    "buffers": in_steps(BUFFERS),
    "unit": in_steps(UNIT),
    "copies": in_steps([each | {"carries": ""} for each in COPIES]),
    "growing": growing([10 + 0.25 * number for number in range(40)]),
    "slow group": in_groups([2, 2.2, 1.9, 8]),
    "flow": flowing(calls={"logits": {"at": 2.52, "until": 4.09, "ready": 2.51}}),
    "stalled": late_trace(stalled_once),
    "in turn": late_trace(late_in_turn),
    "in turn, with cores": late_trace(late_in_turn, cores=True),
    "in turn, without cores": late_trace(late_in_turn, cores=False),
    "accumulated": trace_of(accumulated(by_hand=True), num_ranks=1),
    "flags": trace_of(flagged([ALL_USED, "", ALL_USED]), num_ranks=1),
}


ONLY_IN: dict[str, str] = {
    **dict.fromkeys(("all_to_all_splits", "expert_load"), "routed0"),
    **dict.fromkeys(("pipeline_stages", "bubbles", "pipeline_schedule"), "piped0"),
    "op_slack": "training",
}
"""Runs with the data of some analyses, which the random runs lack."""


@cache
def loaded(name: str) -> Frames:
    """A run, loaded once for all tests, so that each table is computed once."""
    return load((TRACES | FAULTY)[name])


@pytest.fixture(scope="module", params=TRACES)
def run(request: pytest.FixtureRequest) -> tuple[Run, Frames]:
    return Run(TRACES[request.param]), loaded(request.param)


def test_every_analysis_has_a_second_computation() -> None:
    assert SECOND.keys() == COMPARED.keys()


@pytest.mark.parametrize("analysis", COMPARED.values(), ids=COMPARED)
def test_an_analysis_agrees_with_loops_in_every_column(
    run: tuple[Run, Frames], analysis: Analysis
) -> None:
    assert differences(analysis, *run) == []


@pytest.mark.parametrize("name", FAULTY)
def test_an_injected_fault_is_found_by_both(name: str) -> None:
    found = differences(CATALOG["consistency"], Run(FAULTY[name]), loaded(name))
    told_by_one = "only in the table: ('order', 'world', 1, '3', 0)"  # the loops have `has_cycle`
    assert found == ([told_by_one] if name == "crossed" else [])


@pytest.mark.parametrize("name", [*TRACES, *FAULTY])
def test_a_cycle_in_the_order_of_calls_is_there_if_and_only_if_it_is_reported(name: str) -> None:
    problems = set(CATALOG["consistency"].function(loaded(name))["problem"])
    assert has_cycle(Run((TRACES | FAULTY)[name])) == bool(problems & {"order", "deadlock"})


def test_every_rule_and_every_problem_has_something_to_compare() -> None:
    def all_of(name: str, column: str, traces: dict[str, Trace]) -> set[str]:
        tables = [CATALOG[name].function(loaded(trace)) for trace in traces]
        return {text for table in tables for text in table[column]}

    # Wrong reductions are those of gradients/test_sums.py and tests/gradients; hangs are faults of
    # `consistency` in dumps, see importers/flight_recorder/test_importer.py.
    rules = {rule.name for rule in RULES} - {"wrong_reduction", "hang"}
    assert all_of("findings", "rule", TRACES) == rules
    problems = all_of("consistency", "problem", FAULTY)
    of_calls = {"kind", "reduce_op", "root", "dtype", "size", "order", "transfer", "missing call"}
    of_states = {f"{state} rank" for state in ("dead", "unresponsive", "aborted", "missing")}
    assert problems == of_calls | of_states | {"failed rank", "behind"}


@pytest.mark.parametrize(
    ("before", "after"),
    [("random0", "random1"), ("layouts0", "layouts1"), ("training", "mesh"), ("mesh", "mesh")],
)
def test_the_difference_of_two_runs_agrees_with_loops(before: str, after: str) -> None:
    first, second = TRACES[before], TRACES[after]
    table = diff(load(first), load(second)).to_dict("records")
    found = {tuple(row.pop(key) for key in OF_TWO_RUNS): row for row in table}
    expected = diff_by_loops(Run(first), Run(second))
    assert found.keys() == expected.keys()
    for place, row in expected.items():
        change = row.pop("change")
        assert found[place].pop("change") == change, place
        assert found[place] == pytest.approx(row, rel=1e-9, abs=1e-6, nan_ok=True), place


@pytest.mark.parametrize("analysis", COMPARED.values(), ids=COMPARED)
def test_a_value_that_is_off_is_noticed(analysis: Analysis) -> None:
    trace = TRACES[ONLY_IN.get(analysis.name, "random1")]
    run, frames = Run(trace), load(trace)
    right = analysis.function(frames)
    for column in analysis.columns:
        if column.name in SECOND[analysis.name].ignored:
            continue
        values = right[column.name].tolist()
        values[0] = f"{values[0]}x" if column.type is str else not values[0]
        if column.type in (int, float):
            values[0] = 12345678
        wrong = right.assign(**{column.name: values})
        broken = replace(analysis, function=lambda _, wrong=wrong: wrong)
        assert differences(broken, run, frames), column.name
