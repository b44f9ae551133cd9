"""Rules that follow data through operators: logits of a loss, sums apart, dependent transfers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from commtrace.analyze import load
from commtrace.analyze.findings import findings
from commtrace.settings import Settings
from commtrace.tracefile import Trace
from tests.commtrace.analyze.flow_rows import NUM_STEPS, flowing

MS = 1_000_000


def found(trace: Trace, rule: str, **thresholds: float) -> list[dict[str, Any]]:
    frames = replace(load(trace), settings=Settings(thresholds=thresholds))
    table = findings(frames)
    return table[table["rule"] == rule].to_dict("records")


def test_logits_that_are_gathered_for_a_loss_are_found_in_all_steps() -> None:
    (one,) = found(flowing(), "gathered_logits")
    assert one["title"] == (
        "The logits of output (f32[16,256] tp:S(1)) are gathered on tp for a loss: each rank holds "
        "all 256 classes, 16.4 kB."
    )
    assert (one["module"], one["num_calls"]) == ("output", NUM_STEPS)
    # Three sums of 16 numbers send 2/256 * 3 of the bytes.
    assert one["cost_bytes"] == pytest.approx(NUM_STEPS * 8_192 * (1 - 6 / 256))
    assert one["change"] == "payload *0.02344 where finding=2; latency *3 where finding=2"


@pytest.mark.parametrize(
    ("operators", "calls"),
    [
        ({"loss": {"op": "aten.relu.default"}}, {}),  # no loss
        ({"loss": {"op": "aten._softmax.default"}}, {}),
        ({"loss": {"needs": "2"}}, {}),  # of other data
        ({"cat": {"op": "aten.mm.default"}}, {}),  # of a product of what was gathered
        ({}, {"logits": {"source_spec": "f32[16,256] tp:S(0)"}}),  # along tokens
        ({}, {"logits": {"source_spec": "f32[16,8] tp:S(1)", "target_spec": "f32[16,8] tp:R"}}),
        ({}, {"logits": {"source_spec": "", "target_spec": ""}}),
    ],
)
def test_what_is_gathered_for_something_else_is_not(
    operators: dict[str, Any], calls: dict[str, Any]
) -> None:
    assert found(flowing(operators, calls), "gathered_logits") == []
    assert found(flowing(num_detailed=0), "gathered_logits") == []


def test_without_operators_nothing_is_known_of_what_they_read() -> None:
    trace = flowing()
    trace = replace(
        trace, tables={name: rows for name, rows in trace.tables.items() if name != "ops"}
    )
    assert found(trace, "gathered_logits") == found(trace, "sums_apart") == []


def test_two_sums_that_are_only_added_could_be_reduced_at_once() -> None:
    (one,) = found(flowing(), "sums_apart")
    assert one["title"] == (
        "Two sums on tp, in tokens and positions, are reduced apart and then added, 6 times per "
        "rank, in forward. Nothing else reads them."
    )
    assert (one["module"], one["num_calls"]) == ("positions", NUM_STEPS)
    assert one["change"] == "remove where finding=1"
    # The transfer of 0.5 ms, and 0.1 ms in which Python makes a call.
    assert one["cost_ns"] == pytest.approx(NUM_STEPS * 0.6 * MS)
    assert one["cost_bytes"] == NUM_STEPS * 4096


def test_of_sums_of_which_one_is_repeated_the_larger_is_reduced() -> None:
    shapes = {"add": {"shapes": "[8,128];[128]"}}
    (one,) = found(flowing(shapes, {"tokens": {"payload_bytes": 512}}), "sums_apart")
    assert (one["module"], one["source"]) == ("tokens", "model.py:10")
    assert "in positions and tokens," in one["title"]


@pytest.mark.parametrize(
    ("operators", "calls"),
    [
        ({"add": {"op": "aten.mul.Tensor"}}, {}),
        ({"more": {"needs": "c1"}}, {}),  # positions are read once more
        ({"more": {"needs": "c2"}}, {}),  # tokens are
        ({}, {"positions": {"reduce_op": "max"}}),
        ({"add": {"shapes": "[8,128,1];[1,1,128]"}}, {}),  # the sum is larger than both
        (
            {},
            {
                "tokens": {"kind": "reduce_scatter"},
                "positions": {"kind": "reduce_scatter", "payload_bytes": 512},
            },
        ),
        ({}, {"positions": {"dtype": "bfloat16"}}),
        ({}, {"positions": {"kind": "all_gather"}}),
        ({}, {"positions": {"used": "more"}}),
        ({}, {"positions": {"used": ""}}),
    ],
)
def test_sums_that_are_used_apart_are_reduced_apart(
    operators: dict[str, Any], calls: dict[str, Any]
) -> None:
    assert found(flowing(operators, calls), "sums_apart") == []
    assert found(flowing(num_detailed=0), "sums_apart") == []


def test_transfers_that_nothing_hides_are_found_by_axis_and_kind() -> None:
    every = found(flowing(), "dependent_communication", dependent_share=0.09)
    assert [(one["kind"], one["mesh_axis"], one["num_calls"]) for one in every] == [
        ("all_reduce", "tp", 2 * NUM_STEPS),
        ("all_gather", "tp", NUM_STEPS),
    ]
    assert every[0]["title"] == (
        "Transfers of all_reduce on tp take 10% of the steps, 1 ms of each, and nothing can hide "
        "them: their data is made right before, and used at once (12 calls, 4.1 kB on average)."
    )
    assert "Sequence parallelism" in every[0]["advice"]
    assert every[0]["change"].startswith("latency *0.5 where finding=")
    # All messages of the kind are of one size, and on no link do 4 kB take 0.5 ms: it is latency.
    assert every[0]["cost_ns"] == pytest.approx(NUM_STEPS * MS / 2, rel=0.1)
    assert every[0]["most_ns"] == NUM_STEPS * MS / 2
    assert found(flowing(), "dependent_communication") == []  # below 15% of the steps


@pytest.mark.parametrize(
    "columns",
    [
        {"ready": 0.4},  # an operator ran since: it could be issued earlier
        {"carries": "gradients"},
        {"kind": "broadcast"},
        {"phase": "optimizer"},
        {"seq": -1},  # its wait for late ranks is not known
        {"result_used_ns": -1, "data_ready_ns": -1},
        {"blocked_ns": 0},
    ],
)
def test_other_transfers_are_not_dependent(columns: dict[str, Any]) -> None:
    calls = {"tokens": columns, "positions": columns}
    work = {"embed": {"duration_ns": MS // 4}}
    every = found(flowing(work, calls), "dependent_communication", dependent_share=0.06)
    assert [one["kind"] for one in every] == ["all_gather"]
