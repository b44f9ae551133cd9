from __future__ import annotations

import pytest

from commtrace.analyze import load
from commtrace.analyze.experts.expert_load import expert_load as table_of
from commtrace.errors import UsageError
from commtrace.figures.expert_load import MOST_LINES, MOST_POINTS, expert_load
from tests.commtrace.analyze.routed import HOT, NUM_STEPS, routed_trace
from tests.commtrace.analyze.rows import group, run_of
from tests.commtrace.figures.test_splits import pair


def test_the_layer_with_the_highest_load_has_a_line_for_each_expert() -> None:
    figure = expert_load(table_of(load(routed_trace(0))))
    lines = {each.meta["expert"]: each for each in figure.data}
    hot = lines[HOT + 1]
    assert hot.name == f"expert {HOT + 1} of rank 1"
    assert max(hot.y) == max(max(each.y) for each in figure.data)
    assert set(hot.x) <= set(range(NUM_STEPS))
    assert "layers.1, forward" in hot.hovertext[0]


def test_a_layer_can_be_chosen() -> None:
    table = table_of(load(routed_trace(0)))
    assert "layers.0" in expert_load(table, module="layers.0").data[0].hovertext[0]
    with pytest.raises(UsageError, match=r"no layer 'layers.7' with experts"):
        expert_load(table, module="layers.7")


def test_lines_and_points_are_bounded() -> None:
    size, num_steps = MOST_LINES + 4, 2 * MOST_POINTS + 1
    row = [4 * (1 + to) for to in range(size)]
    calls = [
        each._replace(step=number)  # type: ignore[attr-defined]
        for number in range(num_steps)
        for each in pair([row] * size, number)[:size]
    ]
    frames = run_of(calls, num_ranks=size, groups=[group(ranks=range(size))])
    figure = expert_load(table_of(frames))
    assert len(figure.data) == MOST_LINES
    assert {len(each.x) for each in figure.data} == {num_steps // 3 + 1}
    assert [each.meta["rank"] for each in figure.data] == [0, 1, 2, 3, 8, 9, 10, 11]
