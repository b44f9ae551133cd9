from __future__ import annotations

import math

import pandas as pd
import pytest

from commtrace.analyze import CATALOG, load
from commtrace.figures import matrix
from commtrace.figures.matrix import MAX_SIDE
from commtrace.figures.theme import DARK, LIGHT
from tests.commtrace.analyze.training import training_trace


def table_of(*pairs: tuple[int, int, float, int]) -> pd.DataFrame:
    return pd.DataFrame(pairs, columns=["source", "target", "wire_bytes", "num_calls"])


def test_a_row_sends_to_the_columns_and_nothing_is_no_colour() -> None:
    (cells,) = matrix(table_of((0, 1, 1500.0, 3), (2, 0, 4000.0, 1))).data
    assert [list(row) for row in cells.z] == [
        [None, 1500.0, None],
        [None, None, None],
        [4000.0, None, None],
    ]
    assert cells.text[0][1] == "1.5 kB"
    assert cells.hovertext[0][1] == "<b>rank 0 to rank 1</b><br>1.5 kB in 3 calls"
    assert cells.hovertext[1][0] == "<b>rank 1 to rank 0</b><br>nothing is sent"


def test_ranks_that_send_nothing_have_a_place() -> None:
    figure = matrix(table_of((0, 1, 10.0, 1)), num_ranks=5)
    assert list(figure.layout.yaxis.ticktext) == ["0", "1", "2", "3", "4"]
    assert len(figure.data[0].z) == 5


def test_axes_say_who_sends_to_whom_and_colours_begin_at_nothing() -> None:
    layout = matrix(table_of((0, 1, 10.0, 1), (1, 0, 20.0, 1))).layout
    assert (layout.yaxis.title.text, layout.xaxis.title.text) == ("from rank", "to rank")
    assert layout.yaxis.autorange == "reversed"
    assert (layout.coloraxis.cmin, layout.coloraxis.cmax) == (0, 20)
    assert list(layout.coloraxis.colorbar.ticktext) == ["0 B", "10 B", "20 B"]


def test_amounts_that_differ_much_are_coloured_by_their_logarithm() -> None:
    figure = matrix(table_of((0, 1, 2e3, 1), (1, 0, 1e6, 1)))
    (cells,) = figure.data
    assert cells.z[0][1] == pytest.approx(math.log10(2e3))
    assert cells.z[0][0] is None
    colours = figure.layout.coloraxis
    assert (colours.cmin, colours.cmax) == (3, 6)
    assert list(colours.colorbar.ticktext) == ["1 kB", "10 kB", "100 kB", "1 MB"]


def test_a_single_byte_is_drawn_beside_large_amounts() -> None:
    (cells,) = matrix(table_of((0, 1, 1.0, 1), (1, 0, 1e9, 1))).data
    assert [list(row) for row in cells.z] == [[None, 0.0], [9.0, None]]


def test_a_thousand_ranks_are_drawn_in_blocks_that_lose_no_byte() -> None:
    ring = table_of(*((rank, (rank + 1) % 1000, 8.0, 2) for rank in range(1000)))
    figure = matrix(ring)
    (cells,) = figure.data
    assert len(cells.z) == 125 <= MAX_SIDE
    assert cells.z[0][0] == 7 * 8
    assert cells.z[0][1] == cells.z[124][0] == 8
    assert sum(value or 0 for row in cells.z for value in row) == 8000
    assert cells.hovertext[0][1].startswith("<b>ranks 0–7 to ranks 8–15</b>")
    assert figure.layout.xaxis.title.text == "to ranks, 8 to a cell"


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_amounts_have_the_theme_s_scale(theme: object) -> None:
    figure = matrix(table_of((0, 1, 10.0, 1)), theme=theme)
    assert [colour for _, colour in figure.layout.coloraxis.colorscale] == list(theme.scale)


def test_a_training_run_is_a_ring() -> None:
    table = CATALOG["matrix"].function(load(training_trace()))
    (cells,) = matrix(table).data
    sends = {(i, j) for i, row in enumerate(cells.z) for j, value in enumerate(row) if value}
    assert sends == {(0, 1), (1, 2), (2, 3), (3, 0)}


def test_without_bytes_it_says_so_and_why() -> None:
    figure = matrix(table_of(), because="The run had one rank.")
    assert not figure.data
    (note,) = figure.layout.annotations
    assert note.text == "No bytes go from rank to rank in this trace: The run had one rank."
