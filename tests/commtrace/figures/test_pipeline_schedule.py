from __future__ import annotations

from typing import Any

import pytest

from commtrace.analyze import load
from commtrace.analyze.pipelines.schedule import pipeline_schedule as table_of
from commtrace.errors import UsageError
from commtrace.figures.pipeline_schedule import MOST_RANKS, pipeline_schedule
from commtrace.figures.theme import DARK
from tests.commtrace.analyze.pipelines.programs import (
    MS,
    Act,
    Program,
    equal,
    gpipe,
    one_f_one_b,
    trace_of_programs,
    zero_bubble,
)
from tests.commtrace.analyze.rows import run_of

SLOW = Program(one_f_one_b(3, 4), lambda act: equal(act) * (2 if act.stage == 1 else 1))


def table(*programs: Program) -> Any:
    return table_of(load(trace_of_programs([[program] for program in programs])))


def traces(figure: Any) -> dict[tuple[str, bool], Any]:
    return {(each.meta["action"], each.meta["is_ideal"]): each for each in figure.data}


def test_a_lane_has_the_actions_of_a_rank_as_they_ran_above_the_ideal_ones() -> None:
    figure = pipeline_schedule(table(SLOW))
    found = traces(figure)
    assert found.keys() == {
        (action, is_ideal) for action in ("forward", "backward") for is_ideal in (False, True)
    }
    ran = found["forward", False]
    expected = {
        (rank, round(SLOW.times[act][1] / MS), str(act.micro_batch))
        for rank, own in SLOW.orders.items()
        for act in own
        if act.kind == "forward"
    }
    assert {
        (lane, round(base * 1000), text)
        for lane, base, text in zip(ran.y, ran.base, ran.text, strict=True)
    } == expected
    assert {round(length * 1000) for length in ran.x} == {10, 20}
    ideal = found["forward", True]
    assert {round(length * 1e9) for length in ideal.x} == {round(40 * MS / 3)}
    assert min(ideal.y) > max(ran.y) + 1


def test_headings_have_the_lengths_and_the_idle_parts() -> None:
    ran, ideal = pipeline_schedule(table(SLOW)).layout.annotations
    idle = sum(SLOW.idle().values()) / (3 * SLOW.length)
    assert ran.text == f"as it ran, step 0: {SLOW.length // MS} ms, {idle:.0%} idle"
    equal_length = 6 * 40
    assert ideal.text.startswith(f"ideal: equal stages, nothing late: {equal_length} ms")


def test_the_round_of_median_length_is_drawn_unless_a_step_is_chosen() -> None:
    rounds = [Program(gpipe(2, 2), lambda act, n=n: n * equal(act)) for n in (1, 9, 2)]
    made = table(*rounds)
    assert "step 2" in pipeline_schedule(made).layout.annotations[0].text
    assert "step 1" in pipeline_schedule(made, step=1).layout.annotations[0].text
    with pytest.raises(UsageError, match="no round of pipeline 0 in step 7"):
        pipeline_schedule(made, step=7)
    with pytest.raises(UsageError, match="no round of pipeline 3"):
        pipeline_schedule(made, pipeline=3)


def test_further_stages_of_a_rank_are_hatched() -> None:
    orders = {
        0: [Act(0, 0, "forward"), Act(2, 0, "forward")],
        1: [Act(1, 0, "forward"), Act(3, 0, "forward")],
    }
    (ran, _) = pipeline_schedule(table(Program(orders))).data
    shapes = dict(zip(ran.hovertext, ran.marker.pattern.shape, strict=True))
    assert {text.split("stage ")[1][0]: shape for text, shape in shapes.items()} == {
        "0": "", "1": "", "2": "/", "3": "/",
    }  # fmt: skip


def test_lanes_are_bounded_and_low_where_there_are_many() -> None:
    few = pipeline_schedule(table(Program(zero_bubble(4, 4))), theme=DARK)
    many = pipeline_schedule(table(Program(gpipe(MOST_RANKS + 2, 2))))
    assert max(many.data[0].y) == MOST_RANKS - 1
    assert f"the first {MOST_RANKS} of {MOST_RANKS + 2} ranks" in many.layout.xaxis.title.text
    assert few.layout.height < many.layout.height < 1200
    assert few.data[0].marker.color == DARK.actions["forward"]


def test_a_run_without_a_pipeline_says_so() -> None:
    figure = pipeline_schedule(table_of(run_of()))
    assert figure.layout.annotations[0].text == "No pipeline is in this trace."
