"""Every injected fault is found and attributed to the right rank, in any order of ranks."""

from __future__ import annotations

from typing import Any

import pytest

from commtrace.analyze import load
from commtrace.analyze.consistency import consistency
from commtrace.analyze.consistency.problem import blame_text
from tests.commtrace.analyze.consistency.runs import (
    Program,
    changed,
    checked,
    crossed,
    training,
    without,
)
from tests.commtrace.analyze.rows import call, group, run_of
from tests.commtrace.analyze.training import training_trace

SEEDS = range(4)


def found(problems: list[dict[str, Any]]) -> list[tuple[str, str, int, str]]:
    return [(p["problem"], p["group"], p["number"], p["ranks"]) for p in problems]


def test_a_healthy_run_of_64_ranks_has_no_problem() -> None:
    program = training(num_ranks=64, tp=8, num_steps=3)
    assert checked(program.rows, program.groups) == []


def test_a_healthy_training_has_no_problem() -> None:
    assert consistency(load(training_trace())).empty


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("kind", "field", "changes", "number"),
    [
        ("all_reduce", "kind", {"kind": "reduce_scatter"}, 0),
        ("all_reduce", "reduce_op", {"reduce_op": "max"}, 0),
        ("all_reduce", "dtype", {"dtype": "bfloat16"}, 0),
        ("all_reduce", "size", {"payload_bytes": 65}, 0),
        ("broadcast", "root", {"root": 3}, 0),
    ],
)
def test_a_rank_that_does_another_thing_is_blamed(
    kind: str, field: str, changes: dict[str, Any], number: int, seed: int
) -> None:
    program = training(num_ranks=8, tp=4)
    problems = checked(changed(program.rows, 0, kind, changes), program.groups, seed=seed)
    group = "world" if kind == "broadcast" else "tp0"
    assert found(problems) == [(field, group, number, "0")]
    assert problems[0]["is_fault"]
    assert problems[0]["source"] == "train.py:7"


def test_only_the_first_call_that_differs_is_reported_and_in_every_field() -> None:
    program = training(num_ranks=8, tp=4)
    rows = changed(program.rows, 6, "all_reduce", {"dtype": "int8", "payload_bytes": 16})
    rows = changed(rows, 6, "all_reduce", {"reduce_op": "min"}, which=1)
    problems = checked(rows, program.groups)
    assert sorted(found(problems)) == [("dtype", "tp1", 0, "6"), ("size", "tp1", 0, "6")]


def test_calls_after_one_in_which_only_the_reductions_differ_are_compared() -> None:
    program = training(num_ranks=8, tp=4, num_steps=3)
    rows = changed(program.rows, 6, "all_reduce", {"reduce_op": "min"})
    rows = changed(rows, 6, "all_reduce", {"reduce_op": "max"}, which=1)
    rows = changed(rows, 6, "all_reduce", {"dtype": "int8"}, which=2)
    problems = checked(rows, program.groups)
    assert found(problems) == [("reduce_op", "tp1", 0, "6"), ("dtype", "tp1", 2, "6")]


def test_of_two_ranks_that_differ_both_are_named_and_which_is_wrong_is_unknown() -> None:
    program = training(num_ranks=2, tp=2)
    problems = checked(changed(program.rows, 0, "all_reduce", {"reduce_op": "max"}), program.groups)
    assert found(problems) == [("reduce_op", "tp0", 0, "0,1")]
    assert blame_text(problems[0]) == "one of: 0, 1"
    assert problems[0]["found"] == "rank 0: max; rank 1: sum"
    assert problems[0]["explanation"] == (
        "The members differ in the reduction of all_reduce 0 of tp (group tp0): "
        "rank 0: max; rank 1: sum. Which of the two ranks is wrong is unknown."
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_call_that_was_left_out_is_seen_by_those_that_follow(seed: int) -> None:
    program = Program(4, 4)
    for kind in ("all_reduce", "all_gather", "barrier"):
        program.all(kind, "tp")
    problems = checked(without(program.rows, 2, "all_reduce"), program.groups, seed=seed)
    assert found(problems) == [("kind", "tp0", 0, "2")]
    assert problems[0]["explanation"] == (
        "The members differ in the kind of all_reduce 0 of tp (group tp0): rank 2: all_gather; "
        "the other 3: all_reduce. It looks as if rank 2 skipped this call."
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rank_that_never_came_is_blamed(seed: int) -> None:
    program = training(num_ranks=8, tp=4)
    rows = without(program.rows, 5, "barrier", which=1)
    problems = checked(rows, program.groups, seed=seed)
    assert found(problems) == [("missing call", "world", 9, "5")]
    assert problems[0]["explanation"] == (
        "Rank 5 never arrived at barrier 9 of group world; ranks 0-4, 6, 7 did."
    )


def test_a_rank_that_makes_a_call_that_no_other_makes_is_blamed() -> None:
    program = training(num_ranks=8, tp=4)
    program.one(0, "all_reduce", "world")
    problems = checked(program.rows, program.groups)
    assert found(problems) == [("extra call", "world", 10, "0")]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rank_without_a_recording_is_a_missing_rank(seed: int) -> None:
    program = training(num_ranks=8, tp=4)
    rows = [row for row in program.rows if row.rank != 3]
    problems = checked(rows, program.groups, seed=seed, run={"missing_ranks": [3]})
    assert found(problems) == [("missing rank", "world", -1, "3")]


def test_calls_beyond_the_memory_bound_are_lost_and_not_missing() -> None:
    program = training(num_ranks=4, tp=2)
    rows = [row for row in program.rows if row.rank != 1 or row.id < 10]
    problems = checked(rows, program.groups, num_dropped={1: 9})
    assert [(p["problem"], p["ranks"], p["is_fault"]) for p in problems] == [
        ("lost calls", "1", False)
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_ring_buffer_that_kept_the_last_calls_only_is_no_missing_rank(seed: int) -> None:
    program = Program(4, 4)
    for kind in ("all_reduce", "all_gather", "barrier", "all_reduce"):
        program.all(kind, "tp")
    rows = [row for row in program.rows if row.seq >= (2 if row.rank == 1 else 1)]
    problems = checked(rows, program.groups, seed=seed)
    assert [(p["problem"], p["ranks"], p["is_fault"]) for p in problems] == [
        ("lost calls", "0,2,3", False),
        ("lost calls", "1", False),
    ]
    assert [problem["found"] for problem in problems] == ["1 call", "2 calls"]
    assert problems[0]["explanation"].startswith(
        "The trace has lost 1 call of each of ranks 0, 2, 3: "
    )


def test_ranks_without_a_recording_are_one_problem() -> None:
    program = training(num_ranks=300, tp=300, num_steps=1)
    rows = [row for row in program.rows if row.rank == 0]
    missing = list(range(1, 300))
    problems = checked(rows, program.groups, run={"missing_ranks": missing})
    (problem,) = [each for each in problems if each["problem"] == "missing rank"]
    assert problem["ranks"] == ",".join(map(str, missing))
    assert problem["explanation"] == (
        "Ranks 1-299 left no recording, but are in 2 groups that communicated: the calls of "
        "these ranks are unknown."
    )
    program = training(num_ranks=8, tp=2, num_steps=1)
    rows = [row for row in program.rows if row.rank in (0, 2)]
    problems = checked(rows, program.groups, run={"missing_ranks": [1, *range(3, 8)]})
    (problem,) = [each for each in problems if each["problem"] == "missing rank"]
    assert problem["ranks"] == "1,3,4,5,6,7"
    assert problem["group"] == "world"


def test_a_fault_is_found_in_what_a_ring_buffer_kept() -> None:
    program = Program(4, 4)
    for kind in ("all_reduce", "all_gather", "barrier", "all_reduce"):
        program.all(kind, "tp")
    rows = changed(program.rows, 2, "all_reduce", {"dtype": "int8"}, which=1)
    problems = checked([row for row in rows if row.seq >= 1], program.groups)
    assert found(problems)[0] == ("dtype", "tp0", 3, "2")


def test_a_truncated_recording_has_lost_completed_calls() -> None:
    program = training(num_ranks=4, tp=2)
    rows = without(program.rows, 2, "barrier", which=1)
    problems = checked(rows, program.groups, complete={2: False})
    assert [(p["problem"], p["is_fault"]) for p in problems] == [("lost calls", False)]
    hung = [row._replace(complete_ns=-1) if row.kind == "barrier" else row for row in rows]
    problems = checked(hung, program.groups, complete={2: False})
    assert found(problems) == [("missing call", "world", 9, "2")]


def test_calls_between_transfers_that_were_lost_are_not_compared() -> None:
    program = training(num_ranks=4, tp=2)
    rows = [row for row in program.rows if (row.rank, row.kind, row.peer) != (2, "recv", 1)]
    problems = checked(rows, program.groups, num_dropped={2: 2})
    assert {(p["problem"], p["ranks"], p["is_fault"]) for p in problems} == {
        ("lost calls", "2", False)
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_two_groups_used_in_opposite_orders_are_found_and_the_minority_is_blamed(
    seed: int,
) -> None:
    program = crossed(4, [3])
    problems = checked(program.rows, program.groups, seed=seed)
    assert [(p["problem"], p["ranks"]) for p in problems] == [("order", "3")]
    assert "before all_reduce" in problems[0]["explanation"]


def test_opposite_orders_of_two_ranks_are_nobody_s_fault_alone() -> None:
    program = crossed(2, [1])
    assert [(p["problem"], p["ranks"]) for p in checked(program.rows, program.groups)] == [
        ("order", "")
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_circle_through_several_groups_is_found(seed: int) -> None:
    # A mesh of 2 x 2: ranks 0 and 3 call columns first, 1 and 2 rows.
    program = Program(4, 2)
    for rank in program.ranks:
        for axis in ("dp", "tp") if rank in (0, 3) else ("tp", "dp"):
            program.one(rank, "all_reduce", axis)
    problems = checked(program.rows, program.groups, seed=seed)
    assert [(p["problem"], p["ranks"]) for p in problems] == [("order", "")]


def test_one_row_in_another_order_can_still_end() -> None:
    program = Program(4, 2)
    for rank in program.ranks:
        for axis in ("dp", "tp") if rank == 0 else ("tp", "dp"):
            program.one(rank, "all_reduce", axis)
    assert checked(program.rows, program.groups) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_that_hangs_in_opposite_orders_is_a_deadlock(seed: int) -> None:
    program = crossed(2, [1])
    first = [row._replace(complete_ns=-1) if row.id == 1 else row for row in program.rows]
    hung = [row for row in first if row.id < 2]
    problems = checked(hung, program.groups, seed=seed, complete={0: False, 1: False})
    assert found(problems) == [("deadlock", "tp0", 0, "0,1")]
    assert problems[0]["explanation"] == (
        "Deadlock cycle: rank 0 waits in all_reduce 0 of tp (group tp0) at train.py:7 for rank "
        "1; rank 1 waits in all_reduce 1 of group world at train.py:8 for rank 0. Which of the "
        "two ranks is wrong is unknown."
    )


def test_two_ranks_that_both_receive_first_are_a_deadlock() -> None:
    program = Program(2, 2)
    for rank in program.ranks:
        program.one(rank, "recv", "world", peer=1 - rank, complete_ns=-1)
    problems = checked(program.rows, program.groups, complete={0: False, 1: False})
    assert [(p["problem"], p["ranks"]) for p in problems] == [("deadlock", "0,1")]


@pytest.mark.parametrize("kind", ["send", "recv"])
@pytest.mark.parametrize("is_closed", [True, False])
def test_two_ranks_that_both_do_the_same_are_reported_once(kind: str, is_closed: bool) -> None:
    program = Program(2, 2)
    program.all("barrier", "world")
    for rank in program.ranks:
        program.one(rank, kind, "world", peer=1 - rank, complete_ns=-1)
    problems = checked(program.rows, program.groups, complete=dict.fromkeys((0, 1), is_closed))
    assert [(p["problem"], p["ranks"]) for p in problems] == [("deadlock", "0,1")]


def test_two_ranks_that_send_and_never_receive_are_reported_once() -> None:
    program = Program(2, 2)
    for rank in program.ranks:
        program.one(rank, "send", "world", peer=1 - rank, is_async=True)
    (problem,) = checked(program.rows, program.groups)
    assert (problem["problem"], problem["ranks"]) == ("transfer", "0,1")
    assert problem["explanation"] == (
        "On group world, from rank 0 to rank 1: 1 transfer sent, 0 received; "
        "from rank 1 to rank 0: 1 transfer sent, 0 received. Which of the two ranks is wrong is "
        "unknown."
    )


def test_a_transfer_beside_a_deadlock_is_reported_too() -> None:
    program = Program(2, 2)
    program.one(0, "send", "world", peer=1, is_async=True)
    for rank in program.ranks:
        program.one(rank, "recv", "world", peer=1 - rank, complete_ns=-1, payload_bytes=8)
        program.one(rank, "recv", "world", peer=1 - rank, complete_ns=-1, payload_bytes=8)
    problems = checked(program.rows, program.groups)
    assert {p["problem"] for p in problems} == {"deadlock", "transfer"}


def test_a_rank_that_waits_for_another_is_a_victim() -> None:
    # Rank 2 does not come; rank 0 waits for it, ranks 1 and 3 for rank 0 and rank 2.
    program = Program(4, 2)
    program.all("barrier", "world")
    program.one(0, "all_gather", "dp", complete_ns=-1)
    program.one(1, "all_reduce", "tp", complete_ns=-1)
    program.one(3, "all_reduce", "tp", complete_ns=-1)
    problems = checked(program.rows, program.groups, complete={2: False})
    assert [(p["problem"], p["group"], p["ranks"]) for p in problems if p["is_fault"]] == [
        ("missing call", "dp0", "2"),
    ]
    assert "Calls in 1 other group lack the same ranks." in problems[0]["explanation"]


def test_a_transfer_that_nobody_receives_is_reported() -> None:
    program = training(num_ranks=4, tp=2)
    problems = checked(without(program.rows, 2, "recv", which=1), program.groups)
    assert [(p["problem"], p["ranks"]) for p in problems] == [("transfer", "1,2")]
    assert problems[0]["found"] == "2 transfers sent, 1 received"


def test_a_transfer_of_another_size_is_reported() -> None:
    program = training(num_ranks=4, tp=2)
    rows = changed(program.rows, 2, "recv", {"payload_bytes": 7})
    assert [p["found"] for p in checked(rows, program.groups)] == ["4 bytes sent, 9 received"]


def test_receiving_from_whoever_comes_is_not_compared() -> None:
    program = training(num_ranks=4, tp=2)
    rows = changed(program.rows, 2, "recv", {"peer": -1})
    assert checked(rows, program.groups) == []


def test_an_all_to_all_of_which_not_all_is_received_is_reported() -> None:
    program = training(num_ranks=4, tp=2)
    rows = changed(program.rows, 3, "all_to_all", {"output_shapes": "[9]"})
    problems = checked(rows, program.groups)
    assert found(problems) == [("size", "world", 1, "")]
    assert problems[0]["found"] == "80 elements sent, 81 received"


def test_a_gathered_part_that_the_root_has_no_room_for_is_reported() -> None:
    program = training(num_ranks=4, tp=2)
    rows = changed(program.rows, 3, "gather", {"input_shapes": "[33,2]"})
    problems = checked(rows, program.groups)
    assert found(problems) == [("size", "world", 2, "3")]
    assert problems[0]["explanation"] == (
        "In gather 2 of group world, rank 3 has 66 elements, but the root, rank 1, has 64 for it."
    )


@pytest.mark.parametrize("frames", [run_of(), run_of(num_ranks=1), run_of(num_ranks=0, groups=[])])
def test_a_run_without_calls_has_no_problem(frames: Any) -> None:
    assert consistency(frames).empty


def test_a_transfer_of_unknown_size_agrees_with_every_other() -> None:
    def transfers(*received: int) -> list[str]:
        sent = [call(id=n, kind="send", peer=1, payload_bytes=8) for n in range(2)]
        calls = [
            call(rank=1, id=n, kind="recv", peer=0, payload_bytes=size)
            for n, size in enumerate(received)
        ]
        return consistency(run_of([*sent, *calls]))["problem"].tolist()

    assert transfers(8, 8) == transfers(8, -1) == transfers(-1, -1) == []
    assert transfers(8, 9) == ["transfer"]
    assert transfers(-1) == ["transfer"]  # one is not received


def test_a_kernel_of_an_unknown_kind_agrees_with_every_other() -> None:
    def kinds(*names: str) -> list[str]:
        calls = [call(rank=rank, seq=0, kind=name) for rank, name in enumerate(names)]
        frames = run_of(calls, num_ranks=3, groups=[group(ranks=range(3))])
        return consistency(frames)["problem"].tolist()

    assert kinds("all_reduce", "unknown", "all_reduce") == []
    assert kinds("unknown", "unknown", "unknown") == []
    assert kinds("all_reduce", "unknown", "all_gather") == ["kind"]


def test_a_monitored_barrier_does_not_meet_other_barriers() -> None:
    def barriers(*native: str) -> list[tuple[str, str, str]]:
        calls = [
            call(rank=rank, seq=0, kind="barrier", native_op=f"c10d::{name}")
            for rank, name in enumerate(native)
        ]
        frames = run_of(calls, num_ranks=3, groups=[group(ranks=range(3))])
        rows = consistency(frames).to_dict("records")
        return [(row["problem"], row["ranks"], row["found"]) for row in rows]

    plain, monitored = "barrier", "monitored_barrier_"
    assert barriers(plain, plain, plain) == barriers(monitored, monitored, monitored) == []
    assert barriers(plain, monitored, plain) == [("kind", "1", "rank 1: monitored_barrier")]
