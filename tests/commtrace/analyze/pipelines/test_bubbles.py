"""Idle time of pipeline stages by cause, in runs with known times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from commtrace.analyze import Frames, load, notices_of
from commtrace.analyze.notices import of_tables
from commtrace.analyze.pipelines.bubbles import bubbles
from commtrace.analyze.pipelines.causes import (
    BLOCKED_RECEIVE,
    CAUSES,
    DRAIN,
    IMBALANCE,
    LATE_SEND,
    STRAGGLER,
    TRANSFER,
    WARM_UP,
)
from commtrace.analyze.pipelines.rounds import rounds
from commtrace.tracefile import Trace, trace_of_rows
from tests.commtrace.analyze.by_hand import rows as rows_of
from tests.commtrace.analyze.pipelines.programs import (
    BACKWARD,
    FORWARD,
    MS,
    Act,
    Orders,
    Program,
    any_program,
    equal,
    gpipe,
    one_f_one_b,
    run_of_program,
    trace_of_programs,
    zero_bubble,
)
from tests.commtrace.analyze.rows import START_NS, run_of

ORDERS: dict[str, Callable[[int, int], Orders]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "zero_bubble": zero_bubble,
}


def sums(frames: Frames) -> dict[Any, int]:
    """Idle time by cause, of the causes that occur."""
    return bubbles(frames).groupby("cause")["duration_ns"].sum().to_dict()


def of_ranks(frames: Frames, cause: str) -> dict[Any, int]:
    table = bubbles(frames)
    return table[table["cause"] == cause].groupby("rank")["duration_ns"].sum().to_dict()


@pytest.mark.parametrize(("num_ranks", "num"), [(2, 2), (4, 8), (8, 16)])
def test_equal_stages_of_gpipe_are_idle_for_warm_up_and_drain_alone(
    num_ranks: int, num: int
) -> None:
    found = sums(run_of_program(Program(gpipe(num_ranks, num))))
    pairs = num_ranks * (num_ranks - 1)
    assert found == {WARM_UP: pairs // 2 * 10 * MS, DRAIN: pairs * 30 * MS - pairs // 2 * 10 * MS}


@pytest.mark.parametrize(("num_ranks", "num"), [(2, 4), (4, 8), (8, 16)])
def test_equal_stages_of_1f1b_are_idle_for_warm_up_and_drain_alone(
    num_ranks: int, num: int
) -> None:
    found = sums(run_of_program(Program(one_f_one_b(num_ranks, num))))
    each = num_ranks * (num_ranks - 1) // 2 * 30 * MS
    assert found == {WARM_UP: each, DRAIN: each}


@pytest.mark.parametrize("name", ORDERS)
def test_a_slow_stage_makes_others_idle_by_its_imbalance(name: str) -> None:
    orders = ORDERS[name](4, 8)
    slow = Program(orders, lambda act: equal(act) * (3 if act.stage == 2 else 1))
    mean = Program(orders, lambda act: equal(act) * 6 // 4)
    found = run_of_program(slow, 3)
    now, before = slow.idle(), mean.idle()
    expected = {rank: 3 * (now[rank] - before[rank]) for rank in (0, 1, 3)}
    assert of_ranks(found, IMBALANCE) == pytest.approx(expected)
    assert sums(found).keys() == {WARM_UP, DRAIN, IMBALANCE}


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_an_action_that_takes_longer_than_others_of_its_stage_is_a_straggler(name: str) -> None:
    orders = ORDERS[name](4, 8)
    late = Act(1, 3, FORWARD)
    program = Program(orders, lambda act: equal(act) + (40 * MS if act == late else 0))
    usual = Program(orders).idle()
    expected = {rank: program.idle()[rank] - usual[rank] for rank in (0, 2, 3)}
    assert of_ranks(run_of_program(program), STRAGGLER) == expected
    assert all(time == 40 * MS for time in expected.values())


def _only(stage: int, kind: str, time: int) -> Callable[[Act], int]:
    return lambda act: time if (act.stage, act.kind) == (stage, kind) else 0


@pytest.mark.parametrize("name", ORDERS)
def test_a_send_long_after_the_computation_is_late(name: str) -> None:
    orders = ORDERS[name](4, 8)
    program = Program(orders, send_late=_only(1, FORWARD, 15 * MS))
    found = run_of_program(program)
    usual, now = Program(orders).idle(), program.idle()
    late = sums(found)[LATE_SEND]
    assert late == sum(now.values()) - sum(usual.values())
    assert sums(found).keys() == {WARM_UP, DRAIN, LATE_SEND}
    rows = bubbles(found)
    of_receiver = rows[(rows["cause"] == LATE_SEND) & (rows["rank"] == 2)]
    assert set(of_receiver["send_delay_ns"]) >= {15 * MS}
    first: Any = of_receiver.sort_values("start_ns").iloc[0]
    assert (first["source_stage"], first["source_rank"]) == (1, 1)
    assert first["transfer"].startswith("1:")


@pytest.mark.parametrize("name", ORDERS)
def test_a_receive_that_is_issued_after_the_data_was_sent_is_blocked(name: str) -> None:
    orders = ORDERS[name](4, 8)
    program = Program(orders, receive_late=_only(2, FORWARD, 15 * MS))
    found = run_of_program(program)
    usual, now = Program(orders).idle(), program.idle()
    # While the data is on its way, a late receive delays nothing.
    assert sums(found)[BLOCKED_RECEIVE] == sum(now.values()) - sum(usual.values())
    assert sums(found).keys() == {WARM_UP, DRAIN, BLOCKED_RECEIVE}


def test_a_receive_behind_another_one_is_blocked() -> None:
    program = Program(gpipe(2, 1), transfer=0)
    acts, comm = program.rows()
    # Rank 1 waits for 6 ms for another receive after its input has been sent.
    delayed = [
        row._replace(start_ns=row.start_ns + 6 * MS) if row.rank == 1 or row.action == BACKWARD
        else row
        for row in acts
    ]  # fmt: skip
    received = next(row for row in comm if row.rank == 1 and row.kind == "recv")
    shifted = [
        row._replace(issue_ns=row.issue_ns + 6 * MS)
        if row.direction == BACKWARD or (row.rank == 0 and row.kind == "recv")
        else row
        for row in comm
        if row is not received
    ]
    early = received._replace(
        issue_ns=received.issue_ns - 2, call_ns=2, blocked_ns=2, complete_ns=received.issue_ns
    )
    other = received._replace(
        id=77, micro_batch=9, issue_ns=received.complete_ns - 10 * MS,
        call_ns=16 * MS, blocked_ns=16 * MS, complete_ns=received.complete_ns + 6 * MS,
    )  # fmt: skip
    trace = trace_of_programs([[program]])
    made = trace_with(trace, comm=[*shifted, early, other], pipeline_actions=delayed)
    assert sums(load(made))[BLOCKED_RECEIVE] == 2 * 6 * MS


def trace_with(trace: Trace, **tables: list[Any]) -> Trace:
    """Return a trace with other rows in some tables."""
    return trace_of_rows(trace.run, {name: rows_of(trace, name) for name in trace.tables} | tables)


def test_data_on_its_way_is_a_transfer() -> None:
    orders = one_f_one_b(4, 8)
    program = Program(orders, transfer=3 * MS)
    usual, now = Program(orders).idle(), program.idle()
    found = sums(run_of_program(program))
    assert found[TRANSFER] == sum(now.values()) - sum(usual.values())
    assert found.keys() == {WARM_UP, DRAIN, TRANSFER}


@pytest.mark.parametrize("seed", range(40))
def test_the_parts_of_each_interval_add_up_to_it(seed: int) -> None:
    program = any_program(seed)
    table = bubbles(run_of_program(program))
    assert set(table["cause"]) <= CAUSES.keys()
    assert (table["duration_ns"] > 0).all()
    idle = table.groupby("rank")["duration_ns"].sum()
    assert {rank: int(idle.get(rank, 0)) for rank in program.orders} == program.idle()
    for rank, own in program.orders.items():
        parts = table[table["rank"] == rank].sort_values("start_ns")
        assert _intervals(parts) == _gaps(program, own)


def _gaps(program: Program, own: list[Act]) -> list[tuple[int, int]]:
    """Times in which a rank is idle."""
    ends = [0, *(program.times[act][2] for act in own)]
    begins = [*(program.times[act][1] for act in own), program.length]
    return [(end, begin) for end, begin in zip(ends, begins, strict=True) if begin > end]


def _intervals(parts: pd.DataFrame) -> list[tuple[int, int]]:
    """Intervals that the parts before the same action make up, without gaps."""
    found: dict[tuple[int, int, str], tuple[int, int]] = {}
    names = ["stage", "micro_batch", "action", "start_ns", "duration_ns"]
    for *key, start, length in parts[names].itertuples(index=False, name=None):
        begin, end = found.get(tuple(key), (start - START_NS,) * 2)
        assert end == start - START_NS
        found[tuple(key)] = begin, end + length
    return list(found.values())


def test_pipelines_of_data_parallel_replicas_are_apart() -> None:
    slow = Program(gpipe(2, 2), lambda act: 2 * equal(act), ranks={0: 0, 1: 2})
    fast = Program(gpipe(2, 2), ranks={0: 1, 1: 3})
    frames = load(trace_of_programs([[slow, fast]]))
    assert [(each.pipeline, sorted(each.of_ranks)) for each in rounds(frames)] == [
        (0, [0, 2]),
        (1, [1, 3]),
    ]
    assert sums(frames) == {WARM_UP: 3 * 10 * MS, DRAIN: 3 * 50 * MS}


def test_calls_of_a_schedule_within_one_step_are_rounds() -> None:
    trace = trace_of_programs([[Program(gpipe(2, 2))]] * 3)
    acts = [row._replace(step=0) for row in rows_of(trace, "pipeline_actions")]
    made = load(trace_with(trace, pipeline_actions=acts))
    assert [(each.step, each.number) for each in rounds(made)] == [(0, 0), (0, 1), (0, 2)]
    assert sums(made) == {WARM_UP: 3 * 10 * MS, DRAIN: 3 * 50 * MS}


def test_an_evaluation_before_training_is_a_round_of_its_own() -> None:
    orders = gpipe(2, 2)
    ahead = {rank: [act for act in own if act.kind == FORWARD] for rank, own in orders.items()}
    frames = load(trace_of_programs([[Program(ahead)], [Program(orders)]]))
    assert [len(each.actions) for each in rounds(frames)] == [4, 8]
    table = bubbles(frames)
    of_first = table[table["step"] == 0].set_index("cause")["duration_ns"].to_dict()
    assert of_first == {WARM_UP: 10 * MS, DRAIN: 10 * MS}


def test_a_rank_with_the_most_actions_that_are_kept_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frames = run_of_program(Program(gpipe(2, 2)))
    assert [each for each in notices_of(frames, "bubbles") if "actions" in each.text] == []
    monkeypatch.setattr(of_tables, "MAX_ACTIONS", 4)
    texts = [each.text for each in notices_of(frames, "bubbles")]
    kept = "Ranks 0, 1: the first 4 actions of pipeline stages were kept"
    assert any(text.startswith(kept) for text in texts), texts


def test_a_run_without_pipelines_says_so() -> None:
    texts = [each.text for each in notices_of(run_of(), "bubbles")]
    assert any(text.startswith("No action of a pipeline stage was recorded") for text in texts)


def test_a_receive_and_a_send_within_a_mark_are_no_computation() -> None:
    program = Program(one_f_one_b(3, 4), send_late=lambda act: 2 * MS, transfer=3 * MS)
    trace = trace_of_programs([[program]])
    # Bodies begin just before the receive, and end with the send.
    marked = [
        row._replace(start_ns=START_NS + issued - 1, duration_ns=sent - issued + 2)
        for row in rows_of(trace, "pipeline_actions")
        for issued, _, _, sent in [program.times[Act(row.stage, row.micro_batch, row.action)]]
    ]
    found = bubbles(load(trace_with(trace, pipeline_actions=marked)))
    # Work before the send cannot be distinguished from the computation.
    idle = sum(program.idle().values()) - _late(program)
    assert found["duration_ns"].sum() == pytest.approx(idle, abs=100)
    assert found.groupby("cause")["duration_ns"].sum()[TRANSFER] > 3 * MS


def _late(program: Program) -> int:
    return sum(2 * MS for receivers in program.receivers.values() if receivers)
