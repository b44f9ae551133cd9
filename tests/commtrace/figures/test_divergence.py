"""Figures of a comparison of values, checked as data."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from commtrace.analyze import Frames
from commtrace.analyze.values import compare
from commtrace.analyze.values.divergence import divergence
from commtrace.figures.divergence import (
    LEAST,
    MOST,
    colour_scale,
    column_name,
    divergence_line,
    divergence_map,
    excess_text,
)
from commtrace.figures.theme import DARK, LIGHT
from tests.commtrace.analyze.values.rows import held_by_one

HOSTILE = "<b>up</b>\u202e"


def run(factor: float = 1.0, *, hidden: bool = False) -> Frames:
    """Three steps of two modules; in the second, the second module's output is off by a factor."""
    generator = torch.Generator().manual_seed(0)
    values: list[tuple[dict[str, Any], torch.Tensor]] = []
    for step in range(3):
        for module in ("down", HOSTILE):
            value = torch.randn(8, 8, generator=generator)
            if step == 1 and module == HOSTILE:
                value = value * factor
            if not (hidden and step == 2):
                values.append(({"module": module, "step": step}, value))
    return held_by_one(values)


def traces(figure: Any) -> dict[str, Any]:
    return {trace.meta["part"]: trace for trace in figure.data}


def test_a_cell_s_colour_is_the_power_of_ten_of_the_tolerance() -> None:
    right = run()
    comparison = compare(right, run(1.0 + 0.01))
    drawn = traces(divergence_map(comparison, divergence(comparison, right)))["known"]
    heading, first, second = drawn.z
    assert list(heading) == [None] * 3
    assert list(first) == [-3.0] * 3  # equal: at the lower end
    assert second[0] == second[2] == -3.0
    assert 3 < second[1] < 4  # 0.01 of 3.8e-06
    assert f"distance {comparison.pairs['distance'][3]:.2g} of the norm" in drawn.hovertext[2][1]
    assert "1 tensor, 1 wrong" in drawn.hovertext[2][1]


def test_the_first_wrong_cell_is_framed() -> None:
    right = run()
    comparison = compare(right, run(2.0))
    figure: Any = divergence_map(comparison, divergence(comparison, right))
    (frame,) = figure.layout.shapes
    assert (frame.x0, frame.x1, frame.y0, frame.y1) == (0.5, 1.5, 1.5, 2.5)
    same = compare(right, right)
    figure = divergence_map(same, divergence(same, right))
    assert not figure.layout.shapes


def test_cells_without_counterparts_are_grey() -> None:
    right = run()
    comparison = compare(right, run(hidden=True))
    drawn = traces(divergence_map(comparison, divergence(comparison, right)))
    assert [row[2] for row in drawn["known"].z] == [None] * 3
    assert [row[2] for row in drawn["unknown"].z] == [None, 0.0, 0.0]
    assert drawn["unknown"].colorscale[0][1] == LIGHT.use("not known")
    assert "1 without a counterpart" in drawn["unknown"].hovertext[1][2]


def test_elements_that_are_not_finite_have_the_last_colour() -> None:
    right = run()
    comparison = compare(right, run(torch.inf))
    drawn = traces(divergence_map(comparison, divergence(comparison, right)))
    assert drawn["known"].z[2][1] <= MOST
    assert drawn["known"].z[2][1] > 3


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
def test_below_and_above_the_tolerance_have_colours_of_their_own(theme: Any) -> None:
    scale = colour_scale(theme)
    places = [place for place, _ in scale]
    assert places == sorted(places)
    assert [colour for place, colour in scale if place == pytest.approx(1 / 3)] == [
        theme.scale[2],
        theme.excess[0],
    ]


def test_names_are_shown_and_not_interpreted() -> None:
    right = run()
    figure: Any = divergence_map(compare(right, right), divergence(compare(right, right), right))
    assert list(figure.layout.yaxis.ticktext) == [
        "<b>forward</b>",
        "down",
        "&lt;b&gt;up&lt;/b&gt;\\u202e",
    ]


def test_the_line_has_the_distances_in_tolerances_and_marks_what_is_wrong() -> None:
    right = run()
    compared = compare(right, run(2.0))
    drawn = traces(divergence_line(compared))
    assert drawn["distance"].y[3] == pytest.approx(compared.pairs["excess"].iloc[3], rel=1e-2)
    assert drawn["wrong"].x == (3,)
    assert drawn["tolerance"].y == (1.0, 1.0)
    assert min(drawn["distance"].y) == 10**LEAST
    assert not traces(divergence_line(compare(right, right)))["wrong"].x


@pytest.mark.parametrize(
    ("excess", "text"),
    [
        (0.02, "0.02 of the tolerance"),
        (31_000.0, "3.1e+04 × the tolerance"),
        (float("inf"), "nan or infinite elements"),
        (float("nan"), "tolerance not known"),
    ],
)
def test_a_multiple_of_the_tolerance_as_text(excess: float, text: str) -> None:
    assert excess_text(excess) == text


def test_steps_of_a_column_as_text() -> None:
    assert column_name((3, 3)) == "3"
    assert column_name((-1, 4)) == "outside–4"
