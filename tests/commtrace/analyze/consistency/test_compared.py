"""The check says how many calls it has compared, and why it could not compare the others."""

from __future__ import annotations

from typing import Any

import pytest

from commtrace.analyze import Frames, load
from commtrace.analyze.consistency import Comparison, compared, consistency, result_of
from commtrace.analyze.consistency.compared import (
    AFTER_LOSSES,
    AGREEING,
    DISAGREED,
    LOST,
    NO_OTHER_END,
    UNNUMBERED,
    UNRECORDED,
)
from tests.commtrace.analyze.consistency.runs import changed, training
from tests.commtrace.analyze.rows import call, group, rank_row, run_of
from tests.commtrace.analyze.training import training_trace

PROFILE = {"imported_from": "torch.profiler"}
DUMP = {"imported_from": "flight recorder"}


def result(frames: Frames) -> tuple[str, str]:
    return result_of(frames, compared(frames), int(consistency(frames)["is_fault"].sum()))


def calls_of(ranks: list[int], num: int, **columns: Any) -> list[Any]:
    return [
        call(rank=rank, id=n, seq=n, at=10 * n, until=10 * n + 5, **columns)
        for rank in ranks
        for n in range(num)
    ]


def test_every_call_of_a_whole_run_is_compared() -> None:
    frames = load(training_trace())
    extent = compared(frames)
    assert (extent.num_compared, extent.num_calls, extent.not_compared) == (140, 140, {})
    assert extent.is_complete
    assert result(frames) == ("no fault in 140 calls of 4 ranks", "good")


def test_collectives_and_transfers_are_counted_each() -> None:
    program = training(num_ranks=4, tp=2)
    extent = compared(run_of(program.rows, num_ranks=4, groups=program.groups))
    num_transfers = sum(row.kind in ("send", "recv") for row in program.rows)
    sizes = {each.name: each.size for each in program.groups}
    num = sum(1 / sizes[row.group] for row in program.rows if row.kind not in ("send", "recv"))
    assert extent.num_transfers == num_transfers == 12
    assert extent.num_collectives == num
    assert extent.lines() == [f"compared: {num:.0f} collectives and 12 point-to-point calls"]


CASES: dict[str, tuple[Frames, dict[str, int], str]] = {
    "no number": (
        run_of([call(rank=rank, id=n) for rank in range(2) for n in range(3)]),
        {UNNUMBERED: 6},
        "not compared: 6 calls of 2 ranks",
    ),
    "one rank of two": (
        run_of(calls_of([0], 4), ranks=[rank_row(0)], run={"world_size": 2} | PROFILE),
        {UNRECORDED: 4},
        "not compared: the calls of 1 of 2 ranks only",
    ),
    "one rank of eight, in groups of two": (
        run_of(calls_of([0], 4), ranks=[rank_row(0)], run={"world_size": 8} | PROFILE),
        {UNRECORDED: 4},
        "not compared: the calls of 1 of 8 ranks only",
    ),
    "the end of a profile": (
        run_of(calls_of([0], 5) + calls_of([1], 3), run=PROFILE),
        {LOST: 2},
        "no fault among the 6 of 8 calls that could be compared",
    ),
    "a group matched by its stream": (
        run_of(
            [*calls_of([0, 1], 2, group="stream 7"), *calls_of([0, 1], 1)],
            groups=[group("stream 7"), group()],
            run=PROFILE,
        ),
        {AGREEING: 4},
        "no fault among the 2 of 6 calls that could be compared",
    ),
    "such a group alone": (
        run_of(calls_of([0, 1], 2, group="stream 7"), groups=[group("stream 7")], run=PROFILE),
        {AGREEING: 4},
        "not compared: 4 calls of 2 ranks",
    ),
    "transfers of a profile": (
        run_of(
            [
                *calls_of([0], 1, kind="send", peer=1),
                *calls_of([1], 1, kind="recv", peer=0),
                *calls_of([0, 1], 1, group="h"),
            ],
            ranks=[rank_row(rank, complete=False) for rank in range(2)],
            groups=[group(), group("h")],
            run=PROFILE,
        ),
        {NO_OTHER_END: 2},
        "no fault among the 2 of 4 calls that could be compared",
    ),
    "a sender without a receiver": (
        run_of(
            [*calls_of([0], 1, kind="send", peer=1), *calls_of([0, 1], 1, group="h")],
            groups=[group(), group("h")],
            run=DUMP,
        ),
        {NO_OTHER_END: 1},
        "no fault among the 2 of 3 calls that could be compared",
    ),
    "no call": (run_of(run=PROFILE), {}, "not compared: there is no call"),
    "a run of one rank": (
        run_of(calls_of([0], 2), num_ranks=1),
        {},
        "not compared: a single rank has no peers",
    ),
    "groups of one rank": (
        run_of(
            [*calls_of([0], 2, group="a"), *calls_of([1], 2, group="b")],
            groups=[group("a", [0]), group("b", [1])],
        ),
        {},
        "not compared: 4 calls, each in a group of a single rank",
    ),
    "a group of one rank beside others": (
        run_of(
            [*calls_of([0], 2, group="a"), *calls_of([0, 1], 2)], groups=[group("a", [0]), group()]
        ),
        {},
        "no fault in 6 calls of 2 ranks",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_calls_that_are_not_compared_are_counted_by_reason(case: str) -> None:
    frames, not_compared, text = CASES[case]
    extent = compared(frames)
    assert extent.not_compared == not_compared
    assert extent.num_compared == extent.num_calls - extent.num_alone - sum(not_compared.values())
    assert result(frames)[0] == text
    assert not consistency(frames)["is_fault"].any()
    mood = "good" if text.startswith("no fault in") else ""
    assert result(frames)[1] == mood
    for why, num in not_compared.items():
        noun = "call" if num == 1 else "calls"
        assert f"not compared: {num} {noun} {why}" in extent.lines()


def test_calls_after_the_first_disagreement_are_not_compared() -> None:
    program = training(num_ranks=4, tp=4)
    rows = changed(program.rows, 3, "all_reduce", {"dtype": "bfloat16"})
    frames = run_of(rows, num_ranks=4, groups=program.groups)
    assert compared(frames).not_compared == {DISAGREED: 4}
    assert result(frames) == ("1 fault in 76 calls of 4 ranks", "bad")


def test_a_call_that_a_rank_never_made_is_compared() -> None:
    frames = run_of([*calls_of([0], 3), *calls_of([1], 2)])
    assert compared(frames) == Comparison(5, 5, 0, 3, 0, {}, ("reduction", "type", "size"))
    assert result(frames)[1] == "bad"


def test_calls_behind_lost_transfers_have_no_number_and_are_not_compared() -> None:
    lost = [
        call(rank=rank, id=n, seq=n, kind="send" if n == 3 else "all_reduce", peer=1 - rank)
        for rank in range(2)
        for n in (0, 3, 4)
    ]
    assert set(compared(run_of(lost)).not_compared) >= {AFTER_LOSSES}


def test_the_order_of_rows_and_ranks_does_not_matter() -> None:
    program = training(num_ranks=4, tp=2)
    rows = program.rows[::-1]
    frames = (run_of(each, num_ranks=4, groups=program.groups) for each in (program.rows, rows))
    assert compared(next(frames)) == compared(next(frames))


def test_a_profile_that_ends_before_a_call_of_unknown_end_is_no_fault() -> None:
    calls = [*calls_of([0, 1], 2), call(id=2, seq=2, at=30)]  # of which no end is known
    frames = run_of(calls, run=PROFILE)
    problems = consistency(frames)
    assert problems["problem"].tolist() == ["lost calls"]
    assert "the profiler covered a part of the run" in problems["explanation"][0]
    assert consistency(run_of(calls))["problem"].tolist() == ["missing call"]


def test_properties_that_calls_lack_are_not_said_to_agree() -> None:
    known = {"reduce_op": "sum", "dtype": "float32", "payload_bytes": 8}
    whole = run_of(calls_of([0, 1], 3, **known))
    assert compared(whole).lines() == ["compared: 3 collectives"]
    partly = [*calls_of([0], 3, **known), *calls_of([1], 3, **(known | {"reduce_op": ""}))]
    assert compared(run_of(partly)).lines() == [
        "compared: 3 collectives; unknown: reduction (known for 3 of 6 calls)"
    ]
    rooted = calls_of([0, 1], 2, kind="broadcast", dtype="float32", payload_bytes=8)
    assert compared(run_of(rooted)).unknown == ("root",)
    assert compared(run_of(calls_of([0, 1], 2, kind="barrier"))).unknown == ()
