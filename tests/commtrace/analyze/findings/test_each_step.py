"""Communication of most steps that is not needed, and what looks alike and is needed."""

from __future__ import annotations

import math
from typing import Any

import pytest

from commtrace.analyze import load
from commtrace.analyze.findings import findings
from commtrace.tracefile import Trace
from tests.commtrace.analyze.each_step_rows import (
    BARRIER,
    BUFFERS,
    COPIES,
    NUM_STEPS,
    OBJECTS,
    REDUCE,
    UNIT,
    broadcasts,
    in_steps,
    received,
    reduced_to_root,
)

RULES = [
    *("object_collectives", "redundant_barrier", "unchanged_broadcast", "serial_receives"),
    "reduce_then_broadcast",
    "broadcast_buffers",
    "single_unit",
    "copied_gradients",
]


def found(trace: Trace) -> list[dict[str, Any]]:
    table = findings(load(trace))
    return table[table["rule"].isin(RULES)].to_dict("records")


def test_objects_of_most_steps_are_found_with_their_line() -> None:
    (one,) = found(in_steps(OBJECTS))
    assert one["rule"] == "object_collectives"
    assert one["title"] == (
        "In most steps, 12 calls carry Python objects, at train.py:5: each object is pickled, and "
        "takes a message more for its size."
    )
    assert one["cost_ns"] == NUM_STEPS * 2 * 1_000_000  # both messages of an object


def test_a_barrier_before_a_collective_of_its_group_is_redundant() -> None:
    (one,) = found(in_steps(BARRIER))
    assert (one["rule"], one["num_calls"]) == ("redundant_barrier", NUM_STEPS)
    assert one["source"] == "train.py:5"


@pytest.mark.parametrize(
    "behind",
    [
        {"kind": "broadcast", "root": 0},
        {"kind": "all_reduce", "group": "other"},
        {"kind": "send", "peer": 1},
    ],
)
def test_a_barrier_before_what_does_not_wait_for_its_group_is_none(behind: dict[str, Any]) -> None:
    assert found(in_steps([BARRIER[0], behind])) == []


def test_a_broadcast_of_what_no_rank_has_written_to_is_found() -> None:
    (one,) = found(broadcasts())
    assert (one["rule"], one["num_calls"]) == ("unchanged_broadcast", NUM_STEPS - 1)


@pytest.mark.parametrize("ranks", [(0,), (1,), (0, 1)])
def test_a_broadcast_of_what_a_rank_has_written_to_is_needed(ranks: tuple[int, ...]) -> None:
    assert found(broadcasts(written_on=ranks)) == []


def test_buffers_that_are_broadcast_in_each_step_are_found_with_their_share() -> None:
    (one,) = found(in_steps(BUFFERS))
    assert (one["rule"], one["num_calls"]) == ("broadcast_buffers", NUM_STEPS)
    assert one["title"] == (
        "In most steps, 6 calls of broadcast send the model's buffers of rank 0 to all ranks "
        "before a forward pass, for 10% of the steps."
    )
    assert one["cost_ns"] == NUM_STEPS * 1_000_000


@pytest.mark.parametrize(
    "columns",
    [
        {"module_class": "Net"},  # a broadcast of the program
        {"phase": "other"},  # as the model is wrapped
        {"blocked_ns": 400_000},  # too short to matter
        {"blocked_ns": -1},
    ],
)
def test_other_broadcasts_of_each_step_are_needed(columns: dict[str, Any]) -> None:
    assert found(in_steps([BUFFERS[0] | columns, REDUCE])) == []


def test_blocks_that_are_a_single_unit_are_found_with_the_time_of_all_but_one() -> None:
    (one,) = found(in_steps(UNIT))
    assert (one["rule"], one["num_calls"]) == ("single_unit", 2 * NUM_STEPS)
    assert one["title"] == (
        "FSDP has 3 blocks in a single unit: 12 calls with the parameters or gradients of all, "
        "4.1 kB on average, and no other unit whose computation could hide them."
    )
    assert one["cost_ns"] == pytest.approx(2 * NUM_STEPS * 1_000_000 * (1 - 1 / 3), rel=1e-3)


@pytest.mark.parametrize(
    "calls",
    [
        [UNIT[0], UNIT[0] | {"parameters": "layers.3.w,layers.4.w"}, UNIT[1]],  # two units
        [UNIT[0] | {"parameters": "layers.0.w,layers.0.v,head.w"}],  # of one block
        [UNIT[0] | {"parameters": ""}],
        [each | {"blocked_ns": 100_000} for each in UNIT],  # hidden
        [each | {"blocked_ns": -1} for each in UNIT],
        UNIT[1:],  # of which nothing is gathered: not FSDP
    ],
)
def test_other_gathers_of_parameters_are_no_single_unit(calls: list[dict[str, Any]]) -> None:
    assert found(in_steps([*calls, REDUCE])) == []


def test_gradients_that_are_copied_into_buckets_are_found_with_their_size() -> None:
    (one,) = found(in_steps(COPIES))
    assert (one["rule"], one["num_calls"]) == ("copied_gradients", 2 * NUM_STEPS)
    assert one["title"] == (
        "DistributedDataParallel keeps a second copy of the gradients, 80 MB on each rank: it "
        "copies them into its buckets, and the sums back."
    )
    assert math.isnan(one["cost_ns"])


@pytest.mark.parametrize("columns", [{"payload_bytes": 30_000_000}, {"reason": ""}])
def test_small_or_no_copies_are_not(columns: dict[str, Any]) -> None:
    assert found(in_steps([each | columns for each in COPIES])) == []


def test_what_a_rank_has_reduced_and_sends_to_all_could_be_an_all_reduce() -> None:
    (one,) = found(reduced_to_root())
    assert (one["rule"], one["num_calls"]) == ("reduce_then_broadcast", NUM_STEPS)
    assert one["source"] == "train.py:11"
    # Of two ranks, an all-reduce sends as much as one of both calls, which take 1 ms each.
    assert (one["cost_ns"], one["cost_bytes"]) == (NUM_STEPS * 1_000_000, 0)


@pytest.mark.parametrize(
    "trace",
    [
        reduced_to_root(used_ns=-1),  # nobody has used what was reduced
        reduced_to_root(used_ns=9_000_000),  # after the broadcast only
        reduced_to_root(root=1),
        reduced_to_root(payload_bytes=200_000),
        reduced_to_root(group="other"),
    ],
)
def test_a_broadcast_of_something_else_than_what_was_reduced_is_needed(trace: Trace) -> None:
    assert found(trace) == []


@pytest.mark.parametrize("calls", [OBJECTS, BARRIER])
def test_what_few_steps_do_is_no_finding(calls: list[dict[str, Any]]) -> None:
    assert found(in_steps(calls, steps=[0, 5])) == []
    assert found(in_steps([REDUCE])) == []


def test_receives_in_a_fixed_order_are_found_with_what_the_others_wait() -> None:
    (one,) = found(received(late=1))
    assert one["title"] == (
        "Rank 0 receives from others in a fixed order, at train.py:3: while it waits for one "
        "sender, ranks 2, 3 wait 500 ms for it to receive what they have to send."
    )
    assert math.isnan(one["cost_ns"])  # it is not known when the data was ready
    assert one["source"] == "train.py:3"


@pytest.mark.parametrize(
    "trace", [received(late=3), received(late=0), received(late=1, is_posted_ahead=True)]
)
def test_receives_that_keep_nobody_waiting_are_no_finding(trace: Trace) -> None:
    """The late rank is the last, no rank is late, or all receives are posted ahead."""
    assert found(trace) == []
