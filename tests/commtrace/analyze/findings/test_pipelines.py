"""Findings in pipelines: each injected cause with its stage and advice, and no false alarms."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from commtrace.analyze import load
from commtrace.analyze.findings import findings, reported
from commtrace.analyze.findings.finding import Finding
from commtrace.analyze.findings.pipelines import pipeline_bubbles
from tests.commtrace.analyze.findings.savings_law import broken_laws
from tests.commtrace.analyze.pipelines import test_stages
from tests.commtrace.analyze.pipelines.programs import (
    FORWARD,
    MS,
    Act,
    Orders,
    Program,
    TimeOf,
    equal,
    gpipe,
    one_f_one_b,
    run_of_program,
    trace_of_programs,
    zero_bubble,
)
from tests.commtrace.analyze.pipelines.test_stages import LAYERS, layered, time

MAKERS = (gpipe, one_f_one_b, zero_bubble)


def found_in(program: Program) -> list[Finding]:
    return pipeline_bubbles(run_of_program(program, 4))


def test_a_slow_stage_is_named_with_what_it_costs() -> None:
    program = Program(one_f_one_b(4, 16), lambda act: equal(act) * (2 if act.stage == 2 else 1))
    (finding,) = found_in(program)
    assert finding.title.startswith(
        "Stage 2 on rank 2 takes 1.6 times the mean of the stages per micro-batch: others are idle"
    )
    assert finding.advice.endswith("Recorded with operators, a split is computed.")


def test_even_stages_save_what_a_program_of_such_stages_takes_less() -> None:
    slow, even = (
        Program(one_f_one_b(4, 16), of_act)
        for of_act in (
            lambda act: equal(act) * (2 if act.stage == 2 else 1),
            lambda act: equal(act) * 5 // 4,
        )
    )
    (row,) = findings(run_of_program(slow)).to_dict("records")
    # What ranks do behind their last action takes as many times as long, too.
    assert row["cost_ns"] == pytest.approx(slow.length - even.length, rel=0.02)
    factors = ("*1.250 where rank=0", "*1.250 where rank=1", "*0.625 where rank=2")
    assert row["change"] == "; ".join(
        f"compute {each}" for each in (*factors, "*1.250 where rank=3")
    )


def test_a_late_micro_batch_and_late_sends_of_unknown_data_save_an_unknown_time() -> None:
    late = Act(1, 3, FORWARD)
    programs = {
        "": Program(one_f_one_b(4, 16), lambda act: equal(act) + 150 * MS * (act == late)),
        "earlier": Program(
            one_f_one_b(4, 16),
            send_late=lambda act: 12 * MS if (act.stage, act.kind) == (1, FORWARD) else 0,
        ),
    }
    for cure, program in programs.items():
        frames = run_of_program(program, 4)
        (row,) = findings(frames).to_dict("records")
        assert (row["change"], math.isnan(row["cost_ns"])) == ("", True)
        assert [each.cure for each in reported(frames)] == [cure]


def test_a_stage_of_one_layer_has_no_split_that_could_be_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(test_stages, "LAYERS", [1, 1, 1, 1])
    slow = Program(one_f_one_b(4, 16), lambda act: time(act) * (2 if act.stage == 2 else 1))
    (finding,) = pipeline_bubbles(layered(slow))
    assert finding.advice == (
        "No other split of whole layers is better: make the layers of slow stages faster."
    )


def test_the_advice_for_a_slow_stage_is_the_better_split() -> None:
    (finding,) = pipeline_bubbles(layered(Program(one_f_one_b(4, 16), time)))
    assert LAYERS == [3, 1, 2, 2]
    assert finding.advice == (
        "Split the layers as 2, 2, 2, 2 instead of 3, 1, 2, 2: a round then takes about 1.14 s "
        "instead of 1.5 s."
    )


def test_a_micro_batch_that_takes_long_on_a_stage_is_named() -> None:
    late = Act(1, 3, FORWARD)
    program = Program(one_f_one_b(4, 16), lambda act: equal(act) + (150 * MS if act == late else 0))
    (finding,) = found_in(program)
    assert finding.title.startswith(
        "The forward of micro-batch 3 on stage 1, rank 1, takes 150 ms longer than the median of "
        "the stage: others are idle for 450 ms of all ranks per round"
    )


def test_a_rank_that_sends_late_is_named() -> None:
    program = Program(
        one_f_one_b(4, 16),
        send_late=lambda act: 12 * MS if (act.stage, act.kind) == (1, FORWARD) else 0,
    )
    (finding,) = found_in(program)
    assert finding.title.startswith(
        "Rank 1 sends the output of its stage 12 ms after it has computed it"
    )
    assert finding.advice.startswith("Send an output as soon as it is computed")


def test_a_rank_that_receives_late_is_named() -> None:
    program = Program(
        gpipe(4, 16),
        receive_late=lambda act: 15 * MS if (act.stage, act.kind) == (2, FORWARD) else 0,
    )
    (finding,) = found_in(program)
    assert "receives are issued late, or blocked behind others" in finding.title
    assert finding.advice.startswith("Issue receives before they are needed")


def test_few_micro_batches_leave_the_stages_idle() -> None:
    (finding,) = found_in(Program(gpipe(4, 4)))
    assert finding.title == (
        "The schedule leaves stages idle for 43% of a round with 4 stages and 4 micro-batches, "
        "even if they are equal and nothing is late: 360 ms of all ranks per round."
    )
    assert finding.advice.startswith("Use more micro-batches per step")
    assert finding.cure == ""  # another schedule is not replayed
    kinds = finding.calls.shared["kind"]
    assert kinds == "recv"


def test_causes_of_which_none_is_clear_are_judged_by_their_sum() -> None:
    """Actions are as short as transfers, and no cause alone has most of the idle time."""
    found = found_in(
        Program(
            one_f_one_b(2, 4),
            lambda act: equal(act) // 20 * (3 if act.stage == 1 else 1),
            transfer=5 * MS,
        )
    )
    (finding,) = found
    assert finding.title == (
        "Stages are idle for 67% of the pipeline's time, and in the ideal schedule for 20%. The "
        "rest is due to transfers and the program between actions 45%, stages that differ "
        "(stage 1 on rank 1 takes 1.5 times the mean of the stages) 14%."
    )
    assert finding.advice.startswith("Move layers from slow stages to fast stages.")
    assert "Let a stage compute for longer than a transfer takes" in finding.advice


def test_a_pipeline_of_tiny_actions_waits_for_transfers() -> None:
    tiny = Program(
        one_f_one_b(2, 4), lambda act: equal(act) // 100, transfer=MS,
        send_late=lambda act: MS * (act.micro_batch % 2),
    )  # fmt: skip
    (finding,) = found_in(tiny)
    assert finding.title.startswith("Stages are idle for 87%")


def test_slow_transfers_are_a_cause() -> None:
    (finding,) = found_in(Program(one_f_one_b(4, 16), transfer=25 * MS))
    assert "The rest is due to transfers and the program between actions" in finding.title
    assert finding.advice.startswith("Let a stage compute for longer than a transfer takes")


def test_small_delays_of_a_few_micro_batches_are_no_cause_of_their_own() -> None:
    """4 stages and 6 micro-batches; each action is followed by delays of its size."""
    (finding,) = found_in(
        Program(
            gpipe(4, 6), lambda act: equal(act) // 10, transfer=4 * MS,
            send_late=lambda act: MS * (act.micro_batch % 2),
        )
    )  # fmt: skip
    assert finding.title.startswith("The schedule leaves stages idle for 33% of a round")
    assert "In all, they are idle for" in finding.title
    assert finding.advice.startswith("Use more micro-batches per step")


def test_what_only_the_first_round_has_is_no_finding() -> None:
    orders = one_f_one_b(4, 16)
    slow = Program(orders, lambda act: equal(act) * (1 + 9 * (act.micro_batch == 0)))
    frames = load(trace_of_programs([[slow], *[[Program(orders)]] * 3]))
    assert pipeline_bubbles(frames) == []


def healthy(seed: int) -> Program:
    """A program of equal stages, whose times all vary a little."""
    chance = random.Random(seed)
    num_ranks = chance.choice((2, 4, 8))
    orders: Orders = MAKERS[seed % 3](num_ranks, 4 * num_ranks)

    def varied(most: float, usual: TimeOf) -> TimeOf:
        return {
            act: round(usual(act) * (1 + chance.uniform(-most, most)))
            for own in orders.values()
            for act in own
        }.__getitem__

    def little(_: Act) -> int:
        return MS // 3

    return Program(
        orders, varied(0.1, equal), varied(1, little), varied(1, little),
        chance.randrange(MS),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_healthy_programs_have_no_finding(seed: int) -> None:
    frames = load(trace_of_programs([[healthy(100 * seed + number)] for number in range(2)]))
    assert [finding.title for finding in pipeline_bubbles(frames)] == []


def test_waits_for_receives_in_calls_of_sends_are_waits_of_the_pipeline() -> None:
    """`batch_isend_irecv` waits for a send first if that is first in its list."""
    frames = run_of_program(Program(gpipe(4, 4)), 4)
    (usual,) = findings(frames).to_dict("records")
    is_send = frames.comm["kind"] == "send"
    blocked = frames.comm.groupby(["rank", "step"])["blocked_ns"].transform("sum")
    num_sends = is_send.groupby([frames.comm["rank"], frames.comm["step"]]).transform("sum")
    in_sends = (blocked // num_sends.clip(lower=1)).where(is_send, 0)
    moved = replace(frames, comm=frames.comm.assign(blocked_ns=in_sends))
    (row,) = findings(moved).to_dict("records")
    assert row["title"] == usual["title"]
    assert broken_laws(moved) == []
