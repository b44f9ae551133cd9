"""Rounds of a loop over batches, and the rounds that leave it."""

from __future__ import annotations

import pytest

from commtrace.analyze.consistency.numbered import calls_of_ranks
from commtrace.analyze.divergence.rounds import has_left_loop
from tests.commtrace.analyze.consistency.runs import Program
from tests.commtrace.analyze.rows import op, rank_row, run_of

PER_EPOCH = 4


def has_left(num_calls: int, num_buckets: int = 1, num_dropped: int = 0, between: str = "") -> bool:
    """Answer for a training with an evaluation after each epoch, which ends with some call."""
    program, made = Program(1, 1), []
    for number in range(num_calls):
        begin = 100 * num_buckets * number
        is_new_epoch = number and number % PER_EPOCH == 0
        phases = ["optimizer"] * bool(number) + ["forward"] * bool(is_new_epoch) + ["forward"]
        for place, phase in enumerate(phases):
            made.append(
                op(id=len(made), op="aten.mm", at=begin - 40 + place, phase=phase,
                   module=f"net.{place}", module_call=number)
            )  # fmt: skip
        for _ in range(num_buckets):
            program.one(0, "all_reduce", "world", phase="backward")
        if between:
            program.one(0, between, "tp", phase="forward")
    ranks = [rank_row(0, num_ops_dropped=num_dropped)]
    frames = run_of(program.rows, groups=program.groups, ranks=ranks, ops=made)
    calls = calls_of_ranks(frames, [0])
    alike = calls[calls["kind"] == "all_reduce"]
    return has_left_loop(frames, calls, alike.iloc[-2], alike.iloc[-1])


@pytest.mark.parametrize(
    ("num_calls", "expected"), [(2, False), (12, False), (13, True), (14, False), (5, True)]
)
def test_a_rank_that_ran_an_evaluation_has_left_the_loop(num_calls: int, expected: bool) -> None:
    assert has_left(num_calls) is expected


def test_the_calls_of_one_backward_pass_are_no_rounds() -> None:
    assert [has_left(num_calls, num_buckets=3) for num_calls in (6, 7, 8)] == [False] * 3


def test_calls_of_another_group_between_them_leave_it_open() -> None:
    assert not has_left(13, between="all_gather")


def test_without_all_operators_nothing_is_known() -> None:
    assert not has_left(13, num_dropped=1)
