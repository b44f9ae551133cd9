"""Stages of pipelines: sums of their idle time, and what a better split of layers gives."""

from __future__ import annotations

from typing import Any

import pytest

from commtrace.analyze import Frames, load
from commtrace.analyze.pipelines.bubbles import bubbles
from commtrace.analyze.pipelines.causes import CAUSES
from commtrace.analyze.pipelines.schedule import pipeline_schedule
from commtrace.analyze.pipelines.stages import idle_summary, pipeline_stages
from commtrace.analyze.story import explain, find_call
from tests.commtrace.analyze.pipelines.programs import (
    BACKWARD,
    FORWARD,
    MS,
    Act,
    Program,
    any_program,
    gpipe,
    one_f_one_b,
    run_of_program,
    trace_of_programs,
)
from tests.commtrace.analyze.rows import op

LAYERS = [3, 1, 2, 2]
"""Layers of the stages of a pipeline."""
EACH = {FORWARD: 10 * MS, BACKWARD: 20 * MS}
"""Time of a layer."""


def time(act: Act) -> int:
    return EACH[act.kind] * LAYERS[act.stage]


def layered(program: Program) -> Frames:
    """A run of a program whose layers each have an operator in each pass."""
    ops: list[Any] = []
    for act, (_, begin, _, _) in program.times.items():
        rank = program.rank_of[act]
        for place in range(LAYERS[act.stage]):
            layer = place if act.kind == FORWARD else LAYERS[act.stage] - 1 - place
            ops.append(
                op(
                    rank=rank, id=len(ops), op="aten.mm.default", module=f"layers.{layer}.linear",
                    at=begin + place * EACH[act.kind], duration_ns=EACH[act.kind],
                    phase=act.kind, level="local",
                )
            )  # fmt: skip
    return load(trace_of_programs([[program]], ops=ops))


@pytest.mark.parametrize("orders", [gpipe(4, 8), one_f_one_b(4, 8)])
def test_a_better_split_of_layers_is_that_of_equal_stages(orders: Any) -> None:
    program = Program(orders, time)
    table = pipeline_stages(layered(program))
    assert table["num_layers"].tolist() == LAYERS
    assert table["better_layers"].tolist() == [2, 2, 2, 2]
    then = Program(orders, lambda act: 2 * EACH[act.kind]).length
    assert table["round_ns"].tolist() == [program.length] * 4
    assert table["better_round_ns"].tolist() == pytest.approx([then] * 4)


def test_transfers_are_no_less_with_a_better_split() -> None:
    orders = gpipe(4, 8)
    program = Program(orders, time, transfer=3 * MS)
    table = pipeline_stages(layered(program))
    saved = Program(orders, time).length
    saved -= Program(orders, lambda act: 2 * EACH[act.kind]).length
    assert (table["round_ns"] - table["better_round_ns"]).tolist() == pytest.approx([saved] * 4)


def test_equal_stages_have_no_better_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "LAYERS", [2, 2, 2, 2])
    table = pipeline_stages(layered(Program(gpipe(4, 4), time)))
    assert table["better_layers"].tolist() == table["num_layers"].tolist()
    assert table["better_round_ns"].tolist() == table["round_ns"].tolist()


def test_without_operators_a_better_split_is_unknown() -> None:
    table = pipeline_stages(run_of_program(Program(gpipe(4, 4), time)))
    assert set(table["num_layers"]) == set(table["better_layers"]) == {-1}
    assert table["better_round_ns"].isna().all()


def test_stages_of_one_layer_each_have_no_other_split() -> None:
    table = pipeline_stages(layered(Program(gpipe(4, 4), time)))
    assert set(table["better_layers"]) != {-1}
    single = run_of_program(Program(gpipe(2, 2)))
    assert set(pipeline_stages(single)["better_layers"]) == {-1}


@pytest.mark.parametrize("seed", range(6))
def test_idle_times_of_stages_are_those_of_their_bubbles(seed: int) -> None:
    frames = run_of_program(any_program(seed), 2)
    stages, table = pipeline_stages(frames), bubbles(frames)
    for cause in CAUSES:
        whole = table.loc[table["cause"] == cause, "duration_ns"].sum()
        assert 2 * stages[f"{cause}_ns"].sum() == pytest.approx(whole)
    ranks = stages.groupby("rank")[["busy_ns", "idle_ns"]].sum().sum(axis=1)
    assert ranks.tolist() == pytest.approx([stages["round_ns"].iloc[0]] * len(ranks))


def test_the_summary_has_the_part_of_each_cause() -> None:
    table = pipeline_stages(run_of_program(Program(gpipe(2, 2))))
    # A round of 90 ms, in which each rank is idle for 30 ms.
    assert idle_summary(table) == (
        "The ranks of the pipeline are idle for 33.3% of the rounds: 5.6% warm-up, 27.8% drain."
    )


def test_the_ideal_schedule_has_equal_stages_and_nothing_late() -> None:
    orders = one_f_one_b(3, 4)
    slow = Program(
        orders,
        lambda act: EACH[act.kind] * (4 if act.stage == 1 else 1),
        send_late=lambda act: 5 * MS if act.stage == 0 else 0,
        transfer=MS,
    )
    ideal = Program(orders, lambda act: 2 * EACH[act.kind])
    table = pipeline_schedule(run_of_program(slow))
    found = {
        Act(stage, number, kind): (begin, length, best)
        for stage, number, kind, begin, length, best in table[
            ["stage", "micro_batch", "action", "begin_ns", "duration_ns", "ideal_begin_ns"]
        ].itertuples(index=False, name=None)
    }
    assert found == {
        act: (begin, end - begin, ideal.times[act][1])
        for act, (_, begin, end, _) in slow.times.items()
    }


def test_a_call_is_explained_with_its_stage_micro_batch_and_direction() -> None:
    frames = run_of_program(Program(gpipe(2, 2)))
    where = explain(frames, find_call(frames, "1:0")).where
    assert (where.stage, where.micro_batch, where.direction) == (1, 0, FORWARD)
