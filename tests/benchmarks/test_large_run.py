from __future__ import annotations

import pytest

from benchmarks.large_run import Plan, large_trace
from commtrace.analyze import CATALOG, Frames, load

PLAN = Plan(num_ranks=16, num_calls=16 * 200, num_layers=4, tp=8, late_rank=3)


@pytest.fixture(scope="module")
def frames() -> Frames:
    return load(large_trace(PLAN))


def test_as_many_whole_steps_are_made_as_fit(frames: Frames) -> None:
    assert PLAN.calls_per_step == 4 * 5 + 1
    assert PLAN.num_steps == 9
    assert len(frames.comm) == 16 * 9 * 21
    assert frames.steps.groupby("rank").size().tolist() == [9] * 16


def test_the_injected_straggler_makes_the_others_wait(frames: Frames) -> None:
    ranks = CATALOG["by_rank"].function(frames)
    assert ranks["caused_wait_ns"].idxmax() == PLAN.late_rank
    # Before each of the two all-reduces of a layer's forward pass it is late_ns later than the
    # seven others of its row; rounding of the others' work changes that by less than 1 %.
    injected = PLAN.late_ns * 7 * 2 * PLAN.num_layers * PLAN.num_steps
    assert ranks.loc[PLAN.late_rank, "caused_wait_ns"] >= 0.99 * injected


def test_a_call_is_over_when_its_last_member_came_and_the_data_went_through(
    frames: Frames,
) -> None:
    synchronous = frames.comm[~frames.comm["is_async"]]
    ends = synchronous.groupby(["group", "seq"], observed=True)["complete_ns"].nunique()
    assert set(ends) == {1}
