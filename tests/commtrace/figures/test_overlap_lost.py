from __future__ import annotations

from typing import Any

import pytest

from commtrace.analyze import CATALOG
from commtrace.figures import overlap_lost
from commtrace.figures.overlap_lost import LONGEST_LABEL, MAX_ROWS
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
        "<b>all_reduce in forward</b><br>could hide: 6 ms<br>exposed: issued late 6 ms<br>"
        "behind aten.mm.default in layers.0"
    )
    assert figure.layout.yaxis.ticktext == ("outside of modules<br>all_reduce, forward",)


def test_layers_that_differ_in_their_numbers_are_one_bar_and_the_longest_bar_is_on_top() -> None:
    program = Program()
    program.runs(0, 1_000)
    for layer, lasts in ((0, 10), (1, 20)):
        program.sends(1_000, 1_000 + lasts, ready=1_000, used=1_020, module=f"layers.{layer}.wo")
    program.sends(2_000, 2_050, ready=2_000, used=2_050, module="output")
    figure = overlap_lost(table(program))
    assert figure.layout.yaxis.ticktext == (
        "output<br>all_reduce, forward",
        "layers.*.wo ×2<br>all_reduce, forward",
    )
    lengths = [sum(parts) for parts in zip(*bars(figure).values(), strict=True)]
    assert lengths == pytest.approx([0.05, 0.03])


def test_labels_fit_beside_the_bars_and_end_with_what_tells_modules_apart() -> None:
    program = Program()
    program.runs(0, 1_000)
    for name in ("query_projection", "value_projection"):
        module = f"model.decoder.blocks.first.self_attention.{name}"
        program.sends(1_000, 1_010, ready=1_000, used=1_010, module=module)
    figure = overlap_lost(table(program))
    labels = [text.split("<br>")[0] for text in figure.layout.yaxis.ticktext]
    assert len(set(labels)) == 2
    assert max(map(len, labels)) <= LONGEST_LABEL
    assert figure.layout.margin.l >= 7 * max(map(len, labels))


def test_hatching_means_waiting_as_in_the_other_figures() -> None:
    hatched = {
        trace.meta["part"]
        for trace in overlap_lost(table(issued_late())).data
        if trace.marker.pattern.shape
    }
    assert hatched == {"waiting for late ranks"}


def test_of_many_places_the_costliest_are_drawn_and_the_others_counted() -> None:
    program = Program()
    program.runs(0, 1_000)
    for n in range(MAX_ROWS + 5):
        at = 1_000 + 100 * n
        program.sends(at, at + n + 1, ready=at, used=at + n + 1, module=f"part{n}")
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
