from __future__ import annotations

from typing import Any

import pytest

from commtrace.analyze import CATALOG
from commtrace.figures import overlap_lost
from commtrace.figures.overlap_lost import MAX_ROWS
from commtrace.figures.theme import DARK, LIGHT
from tests.commtrace.analyze.overlap.overlap_lost.lossy import (
    NUM_STEPS,
    Program,
    issued_late,
    of_unknown_dependencies,
    overlapped,
)


def table(program: Program) -> Any:
    return CATALOG["overlap_lost"].function(program.run())


def bars(figure: Any) -> dict[str, list[float]]:
    """Lengths of the bars' parts in ms per step."""
    return {
        trace.meta["part"]: [round(x * 1e3 / NUM_STEPS, 6) for x in trace.x]
        for trace in figure.data
    }


def test_a_bar_is_made_of_the_time_that_could_be_hidden_and_the_rest() -> None:
    program = issued_late()
    program.calls[0] |= {"ready": 4_000}  # 1 of 2 ms could be hidden
    assert bars(overlap_lost(table(program))) == {
        "could hide": [1],
        "other transfer": [1],
        "waiting for late ranks": [0],
        "hidden": [0],
    }


def test_hidden_time_is_drawn_too() -> None:
    found = bars(overlap_lost(table(overlapped())))
    assert sum(found["hidden"]) == pytest.approx(0.99 + 1.5)
    assert sum(found["could hide"]) == pytest.approx(0.02)


def test_an_unknown_chance_is_not_drawn_as_lost() -> None:
    found = bars(overlap_lost(table(of_unknown_dependencies())))
    assert (found["could hide"], found["other transfer"]) == ([0], [2])


def test_the_hover_text_has_the_reason_the_times_and_what_runs_beside() -> None:
    figure = overlap_lost(table(issued_late()))
    assert figure.data[0].hovertext[0] == (
        "<b>all_reduce in forward, issued late</b><br>could hide: 6 ms<br>"
        "behind aten.mm.default in layers.0"
    )
    assert figure.layout.yaxis.ticktext == ("all_reduce in forward: issued late",)


def test_of_many_places_the_costliest_are_drawn_and_the_others_counted() -> None:
    program = Program()
    program.runs(0, 1_000)
    for n in range(MAX_ROWS + 5):
        at = 1_000 + 100 * n
        program.sends(at, at + n + 1, ready=at, used=at + n + 1, module=f"layers.{n}")
    figure = overlap_lost(table(program))
    drawn = bars(figure)["other transfer"]
    assert len(drawn) == MAX_ROWS
    assert min(drawn) == pytest.approx(0.006)
    assert "24 of 29 places" in figure.layout.xaxis.title.text


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_parts_have_the_colours_of_the_theme(theme: Any) -> None:
    colours = {
        trace.meta["part"]: trace.marker.color
        for trace in overlap_lost(table(issued_late()), theme=theme).data
    }
    uses = ("exposed", "transfer", "Wait at N x N", "overlapped")
    assert list(colours.values()) == [theme.use(use) for use in uses]
