from __future__ import annotations

import pandas as pd
import pytest

from commtrace.analyze import CATALOG, Frames, load
from tests.commtrace.analyze.rows import call, group, run_of
from tests.commtrace.analyze.training import training_trace


def by_kind(frames: Frames) -> pd.DataFrame:
    return CATALOG["by_kind"].function(frames)


def test_kinds_come_by_the_time_that_they_block() -> None:
    # One rank, recorded for 1,000,000 ns.
    frames = run_of(
        [
            call(kind="all_gather", payload_bytes=100, blocked_ns=10_000),
            call(kind="all_reduce", payload_bytes=300, blocked_ns=20_000),
            call(kind="all_gather", payload_bytes=200, blocked_ns=30_000),
        ],
        num_ranks=1,
    )
    table = by_kind(frames)
    assert table["kind"].tolist() == ["all_gather", "all_reduce"]
    assert table["num_calls"].tolist() == [2, 1]
    assert table["payload_bytes"].tolist() == [300, 300]
    assert table["blocked_ns"].tolist() == [40_000, 20_000]
    assert table["share"].tolist() == pytest.approx([0.04, 0.02])


def test_kinds_that_block_alike_come_by_size_then_by_name() -> None:
    frames = run_of(
        [
            call(kind="c", blocked_ns=5, wire_bytes=1),
            call(kind="b", blocked_ns=5, wire_bytes=1),
            call(kind="a", blocked_ns=5, wire_bytes=0),
        ]
    )
    assert by_kind(frames)["kind"].tolist() == ["b", "c", "a"]


def test_a_training_step_of_two_layers_has_the_calls_that_theory_gives() -> None:
    # Per layer two all-reduces forward and two backward, one for the embedding; the output is
    # gathered and its gradient scattered once.
    table = by_kind(load(training_trace(num_layers=2, num_steps=3))).set_index("kind")
    assert table["calls_per_step"].to_dict() == {
        "all_reduce": 2 * (2 + 2) + 1,
        "all_gather": 1,
        "reduce_scatter": 1,
        "broadcast": 0,
        "barrier": 0,
    }


def test_a_run_without_communication_has_no_kinds() -> None:
    assert by_kind(run_of()).empty


def test_an_operator_has_a_row_per_kind_and_a_call_without_one_has_none() -> None:
    frames = run_of(
        [
            call(op="aten.mm.default", kind="all_reduce", blocked_ns=1),
            call(op="aten.mm.default", kind="all_gather", blocked_ns=3),
            call(op="", kind="barrier", blocked_ns=2),
            call(op="aten.mm.default", kind="all_gather", blocked_ns=3),
        ],
        num_ranks=1,
    )
    table = CATALOG["by_op"].function(frames)
    assert list(zip(table["op"], table["kind"], table["num_calls"], strict=True)) == [
        ("aten.mm.default", "all_gather", 2),
        ("", "barrier", 1),
        ("aten.mm.default", "all_reduce", 1),
    ]
    assert table["blocked_ns"].tolist() == [6, 2, 1]


def test_phases_come_in_the_order_of_a_step_and_unknown_ones_last() -> None:
    phases = ["other", "strange", "backward", "optimizer", "recompute", "forward", "backward"]
    frames = run_of([call(phase=phase, wire_bytes=8) for phase in phases], num_ranks=1)
    table = CATALOG["by_phase"].function(frames)
    assert table["phase"].tolist() == [
        "forward",
        "backward",
        "recompute",
        "optimizer",
        "other",
        "strange",
    ]
    assert table["num_calls"].tolist() == [1, 2, 1, 1, 1, 1]
    assert table["wire_bytes"].tolist() == [8, 16, 8, 8, 8, 8]


def test_groups_have_their_axis_and_size() -> None:
    groups = [group("g", (0, 1)), group("h", (1,), mesh_axis="dp")]
    calls = [call(payload_bytes=6), call(group="h", payload_bytes=2), call(group="lost")]
    table = CATALOG["by_group"].function(run_of(calls, groups=groups)).set_index("group")
    assert table["mesh_axis"].to_dict() == {"g": "tp", "h": "dp", "lost": ""}
    assert table["group_size"].to_dict() == {"g": 2, "h": 1, "lost": -1}
    assert table["payload_bytes"]["g"] == 3.0


def test_groups_of_one_axis_are_added_up() -> None:
    groups = [group("g", (0,)), group("h", (1,))]
    frames = run_of([call(), call(rank=1, group="h")], groups=groups)
    assert CATALOG["by_axis"].function(frames)["num_calls"].tolist() == [1.0]


def test_lines_and_regions_are_distinguished() -> None:
    calls = [
        call(source_file="a.py", source_line=3, region="loss", blocked_ns=1),
        call(source_file="a.py", source_line=5, blocked_ns=9),
    ]
    lines = CATALOG["by_source"].function(run_of(calls))
    assert lines["source_line"].tolist() == [5, 3]
    assert CATALOG["by_region"].function(run_of(calls))["region"].tolist() == ["", "loss"]
