from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from commtrace.analyze import CATALOG, load
from commtrace.figures import steps
from commtrace.figures.steps import MAX_BARS, step_parts
from commtrace.figures.theme import DARK, LIGHT
from tests.commtrace.analyze.training import training_trace


def table_of(*rows: tuple[int, int, int, int, int]) -> pd.DataFrame:
    """Table from rows of (step, rank, duration, exposed, overlapped), in milliseconds."""
    table = pd.DataFrame(
        rows, columns=["step", "rank", "duration_ns", "exposed_ns", "overlapped_ns"]
    )
    table.iloc[:, 2:] *= 1_000_000
    return table.assign(unknown_ns=0, num_calls=2, num_untimed=0)


TABLE = table_of((0, 0, 10, 4, 1), (0, 1, 10, 2, 3), (1, 0, 20, 5, 0), (1, 1, 20, 5, 0))


def bars(figure: Any) -> dict[str, list[float]]:
    return {trace.meta["part"]: list(trace.y) for trace in figure.data}


def test_a_bar_is_made_of_means_over_ranks_that_add_up_to_the_step() -> None:
    figure = steps(TABLE)
    assert bars(figure) == {
        "exposed": [0.003, 0.005],
        "overlapped": [0.002, 0.0],
        "working": [0.005, 0.015],
    }
    assert list(figure.data[0].x) == [0, 1]
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.ticksuffix) == ("step", "s")


def test_the_hover_text_names_the_rank_that_is_exposed_most_if_it_stands_out() -> None:
    assert steps(TABLE).data[0].hovertext[0].split("<br>") == [
        "<b>step 0</b>",
        "10 ms, mean over ranks",
        "exposed communication 3 ms (30.0%)",
        "overlapped communication 2 ms (20.0%)",
        "no communication 5 ms (50.0%)",
    ]  # 4 ms of 6 are less than 1.5 times the even share of two ranks
    told = steps(table_of((0, 0, 10, 4, 1), (0, 1, 10, 1, 1))).data[0].hovertext[0]
    assert told.endswith("<br>most exposed: rank 0, 4 ms")


def test_what_is_outside_of_steps_is_drawn_only_without_steps() -> None:
    outside = table_of((-1, 0, 100, 10, 0))
    assert list(steps(pd.concat([outside, TABLE])).data[0].x) == [0, 1]
    figure = steps(outside)
    assert list(figure.data[0].y) == [0.01]
    assert list(figure.layout.xaxis.ticktext) == ["outside of steps"]


def test_many_steps_become_means_of_neighbours() -> None:
    table = table_of(*((step, 0, 10, step % 2, 0) for step in range(1000)))
    parts = step_parts(table)
    assert len(parts) == MAX_BARS
    assert (parts["first"].tolist()[:2], parts["last"].tolist()[:2]) == ([0, 5], [4, 9])
    assert parts["exposed"].tolist()[:2] == [400_000, 600_000]
    figure = steps(table)
    assert figure.layout.xaxis.title.text == "step (a bar is the mean of 5)"
    assert figure.data[0].hovertext[0].startswith("<b>steps 0 to 4</b>")


def test_every_100th_step_makes_as_many_bars_as_there_are_steps() -> None:
    table = table_of(*((100 * step, 0, 10, 1, 0) for step in range(2 * MAX_BARS)))
    parts = step_parts(table)
    assert len(parts) == MAX_BARS
    assert (parts["first"].tolist()[:2], parts["last"].tolist()[:2]) == ([0, 200], [100, 300])
    assert steps(table).layout.xaxis.title.text == "step (a bar is the mean of 2)"
    assert len(step_parts(table_of((0, 0, 10, 1, 0), (900, 0, 10, 1, 0)))) == 2


def test_a_bar_far_above_the_others_is_truncated_and_labelled() -> None:
    table = table_of((0, 0, 900, 1, 0), *((step, 0, 10, 1, 0) for step in range(1, 5)))
    figure = steps(table)
    assert list(figure.layout.yaxis.range) == [0, pytest.approx(0.0125)]
    (note,) = figure.layout.annotations
    assert (note.text, note.x) == ("↑ warm-up 900 ms", 0)
    assert not steps(TABLE).layout.annotations


def test_a_long_first_step_is_drawn_as_warm_up() -> None:
    usual = [(step, 0, 10, 1, 0) for step in range(1, 5)]
    first, *others = steps(table_of((0, 0, 30, 1, 0), *usual)).data[0].marker.opacity
    assert first < 1
    assert set(others) == {1}
    assert steps(table_of((0, 0, 12, 1, 0), *usual)).data[0].marker.opacity is None
    later = [(step + 10, *rest) for step, *rest in usual]
    assert steps(table_of((10, 0, 30, 1, 0), *later)).data[0].marker.opacity is None


def test_heights_cover_neither_the_labels_of_the_axis_nor_each_other() -> None:
    lasts = [3590, 3000, *[10] * 57, 900]
    figure = steps(table_of(*((step, 0, each, 1, 0) for step, each in enumerate(lasts))))
    first, second, last = figure.layout.annotations
    texts = [note.text for note in (first, second, last)]
    assert texts == ["↑ warm-up 3.59 s", "↑ 3 s", "↑ 900 ms"]
    assert (first.xanchor, last.xanchor) == ("left", "right")
    assert first.yshift == last.yshift == 0
    assert second.yshift < -10
    many = steps(table_of(*((step, 0, 900 if step == 30 else 10, 1, 0) for step in range(60))))
    assert many.layout.annotations[0].xanchor == "center"


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_parts_have_their_colours(theme: Any) -> None:
    for trace in steps(TABLE, theme=theme).data:
        assert trace.marker.color == theme.uses[trace.meta["part"]]


def test_a_training_run_s_bars_are_as_high_as_its_steps() -> None:
    frames = load(training_trace())
    found = bars(steps(CATALOG["overlap"].function(frames)))
    lasts = frames.steps["end_ns"] - frames.steps["start_ns"]
    wanted = lasts.groupby(frames.steps["step"]).mean() / 1e9
    heights = [sum(parts) for parts in zip(*found.values(), strict=True)]
    assert heights == pytest.approx(wanted.tolist())


def test_without_communication_it_says_so() -> None:
    figure = steps(table_of(), because="No call was recorded.")
    assert not figure.data
    assert figure.layout.annotations[0].text == (
        "No communication is in this trace: No call was recorded."
    )


def test_communication_that_was_not_timed_is_neither_exposed_nor_overlapped_nor_none() -> None:
    # Rank 0 has communication of 3 ms that may be exposed, rank 1 calls of unknown duration.
    table = table_of((0, 0, 10, -1, -1), (0, 1, 10, -1, -1))
    table = table.assign(unknown_ns=[3_000_000, -1], num_untimed=2)
    figure = steps(table)
    assert bars(figure) == {
        "exposed": [0.0],
        "overlapped": [0.0],
        "not known": [0.0065],
        "working": [0.0035],
    }
    assert figure.data[0].hovertext[0].split("<br>") == [
        "<b>step 0</b>",
        "10 ms, mean over ranks",
        "exposed communication: not known",
        "overlapped communication: not known",
        "exposed or overlapped, not known which 6.5 ms (65.0%)",
        "no communication 3.5 ms (35.0%)",
        "exposed time not known for 4 of 4 calls",
    ]


def test_a_step_that_is_timed_in_part_says_of_how_many_calls() -> None:
    table = table_of((0, 0, 10, 4, 1), (0, 1, 10, -1, -1))
    table = table.assign(unknown_ns=[0, 2_000_000], num_untimed=[0, 2])
    texts = steps(table).data[0].hovertext[0].split("<br>")
    assert texts[-1] == "exposed time known for 2 of 4 calls"
    assert not any("most exposed" in text for text in texts)  # of one rank, none is
    assert "exposed communication 2 ms (20.0%)" in texts
