from __future__ import annotations

import pytest

from commtrace.analyze import load
from commtrace.analyze.traffic.by_kind import by_kind
from tests.commtrace.analyze.rows import call, run_of
from tests.commtrace.analyze.training import training_trace


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
