"""Divergence of two runs: a heat map by module and step, and a line along the program.

Colours and heights are distances in multiples of the tolerance, on a logarithmic scale, so that
rounding and fault have different colours whatever the dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from commtrace.analyze.values import ValueComparison, layout_of, name_of
from commtrace.analyze.values.divergence import Divergence, MapRow, along_the_program
from commtrace.figures.label import bold, lines, plain
from commtrace.figures.theme import LIGHT, Theme, layout, theme_of, titled
from commtrace.units import counted

LEAST, MOST = -3.0, 6.0
"""Ends of the colour scale, as powers of ten of the tolerance."""
_TICKS = {
    LEAST: "1/1000",
    0.0: "tolerance",
    3.0: "×1000",
    MOST: "×10⁶",
}  # fmt: skip
_ROW_PIXELS, _HEAD_PIXELS, _FOOT_PIXELS = 15, 56, 44
_LINE_PIXELS = 300
_LONGEST_LABEL = 34
_MOST_STEP_LABELS = 24


def divergence_map(
    comparison: ValueComparison,
    found: Divergence,
    *,
    theme: Theme | str = LIGHT,
    title: str = "",
) -> go.Figure:
    """Draw the heat map of divergence: a row per module and phase, a column per step.

    Args:
        comparison: the comparison.
        found: its divergence.
        theme: colours, by name or as a theme.
        title: heading; none by default.
    """
    theme = theme_of(theme)
    heights, ticks = _places_of_rows(found.rows)
    figure = go.Figure(layout=titled(_map_layout(theme, found, heights, ticks), title))
    cells = found.cells
    texts = [_cell_text(cell, found, comparison.pairs) for cell in cells.to_dict("records")]
    if comparison.fault is not None:
        cell = cells.iloc[found.cell_of_pair[comparison.fault.pair]]
        line, column = heights[int(cell["row"])], int(cell["column"])
        figure.add_shape(
            type="rect", x0=column - 0.5, x1=column + 0.5, y0=line - 0.5, y1=line + 0.5,
            line={"color": theme.ink, "width": 2},
        )  # fmt: skip
    is_known = (cells["worst"] >= 0).to_numpy()
    for chosen, more in (
        (~is_known, {"colorscale": [[0, theme.use("not known")], [1, theme.use("not known")]],
                     "showscale": False, "meta": {"part": "unknown"}}),
        (is_known, {"coloraxis": "coloraxis", "meta": {"part": "known"}}),
    ):  # fmt: skip
        figure.add_trace(_heat(cells, chosen, texts, found, heights, more))
    return figure


def _heat(
    cells: pd.DataFrame,
    chosen: np.ndarray,
    texts: list[str],
    found: Divergence,
    heights: list[int],
    more: Mapping[str, Any],
) -> go.Heatmap:
    """Return the heat map of some cells; a cell's number is its `customdata`."""
    num_lines = max(heights, default=0) + 1
    values = np.full((num_lines, len(found.columns)), np.nan)
    hover = np.full(values.shape, "", dtype=object)
    number = np.full(values.shape, -1)
    place = [heights[row] for row in cells["row"]]
    with np.errstate(divide="ignore"):
        excess = np.log10(cells["excess"].to_numpy("float64")).clip(LEAST, MOST)
    for at in np.flatnonzero(chosen):
        where = place[at], int(cells["column"].iloc[at])
        values[where] = 0.0 if math.isnan(excess[at]) else round(float(excess[at]), 3)
        hover[where], number[where] = texts[at], at
    return go.Heatmap(
        z=[[None if math.isnan(value) else value for value in row] for row in values.tolist()],
        hovertext=hover.tolist(),
        customdata=number.tolist(),
        hoverinfo="text",
        hoverongaps=False,
        xgap=1 if len(found.columns) <= 64 else 0,
        ygap=1,
        **more,
    )


def _places_of_rows(rows: tuple[MapRow, ...]) -> tuple[list[int], dict[int, str]]:
    """Return the line of each row, and the labels of lines; each phase has a line for its name."""
    heights: list[int] = []
    ticks: dict[int, str] = {}
    line, phase = 0, None
    for row in rows:
        if row.phase != phase:
            phase = row.phase
            ticks[line] = bold(plain(phase or "outside of phases"))
            line += 1
        heights.append(line)
        ticks[line] = plain(row_name(row), longest=_LONGEST_LABEL)
        line += 1
    return heights, ticks


def row_name(row: MapRow) -> str:
    """Return the name of a row's module, or of its first and last module."""
    first, last = (name or "(outermost)" for name in (row.module, row.last_module))
    return first if first == last else f"{first} – {last}"


def column_name(column: tuple[int, int]) -> str:
    """Return the steps of a column as text."""
    first, last = ("outside" if step < 0 else str(step) for step in column)
    return first if first == last else f"{first}–{last}"


def _cell_text(cell: Mapping[Any, Any], found: Divergence, pairs: pd.DataFrame) -> str:
    row, column = found.rows[cell["row"]], found.columns[cell["column"]]
    step = f"step{'s' * (column[0] != column[1])} {column_name(column)}"
    parts = [bold(plain(row_name(row))), plain(f"{row.phase}, {step}")]
    if cell["worst"] >= 0:
        parts += pair_lines(pairs.loc[cell["worst"]].to_dict())
    counts = (
        (cell["num_wrong"], "wrong"),
        (cell["num_unknown"], "not comparable"),
        (cell["num_unpaired"], "without a counterpart"),
    )
    tensors = counted(int(cell["num_pairs"] + cell["num_unpaired"]), "tensor")
    parts.append(", ".join([tensors, *(f"{num:,} {what}" for num, what in counts if num)]))
    return lines(parts)


def pair_lines(pair: Mapping[Any, Any]) -> Iterable[str]:
    """Yield a pair's name, distance, and layout and norm in both runs, escaped."""
    yield plain(name_of(pair))
    yield f"{distance_text(pair)}, {excess_text(pair['excess'])}"
    for side, which in (("left", "first"), ("right", "second")):
        where = layout_of({"layout": pair[f"layout_{side}"]})
        yield plain(
            f"{which} run {where}, {pair[f'dtype_{side}']}, norm {pair[f'norm_{side}']:.6g}"
        )


def distance_text(pair: Mapping[Any, Any]) -> str:
    """Return the distance of a pair as text."""
    if math.isnan(pair["distance"]):
        return "distance not known"
    return f"distance {pair['distance']:.2g} of the norm" if pair["distance"] else "equal"


def excess_text(excess: float) -> str:
    """Return a multiple of the tolerance as text.

    >>> excess_text(0.02), excess_text(31_000.0), excess_text(float("inf"))
    ('0.02 of the tolerance', '3.1e+04 × the tolerance', 'nan or infinite elements')
    """
    if math.isnan(excess):
        return "tolerance not known"
    if math.isinf(excess):
        return "nan or infinite elements"
    return f"{excess:.2g} {'×' if excess > 1 else 'of'} the tolerance"


def _map_layout(
    theme: Theme, found: Divergence, heights: list[int], ticks: Mapping[int, str]
) -> go.Layout:
    num_lines = max(heights, default=0) + 1
    num_columns = len(found.columns)
    pixels = _HEAD_PIXELS + _FOOT_PIXELS + _ROW_PIXELS * num_lines
    made = layout(
        theme,
        height=pixels,
        margin={"l": 8, "r": 8, "t": _HEAD_PIXELS, "b": _FOOT_PIXELS},
        meta={"num_columns": num_columns},
    )
    every = -(-num_columns // _MOST_STEP_LABELS)
    made.update(
        xaxis={
            "title": {"text": "step", "standoff": 8},
            "tickmode": "array",
            "tickvals": list(range(0, num_columns, every)),
            "ticktext": [column_name(column) for column in found.columns[::every]],
            "showgrid": False,
            "ticks": "",
            "range": [-0.5, num_columns - 0.5],
        },
        yaxis={
            "tickmode": "array",
            "tickvals": list(ticks),
            "ticktext": list(ticks.values()),
            "tickfont": {"size": 11, "color": theme.ink},
            "range": [num_lines - 0.5, -0.5],
            "showgrid": False,
            "ticks": "",
            "automargin": True,
        },
        coloraxis={
            "colorscale": colour_scale(theme),
            "cmin": LEAST,
            "cmax": MOST,
            "colorbar": _colour_bar(theme, pixels),
        },
    )
    return made


def colour_scale(theme: Theme) -> list[list[Any]]:
    """Return the scale: blue below the tolerance, red above it, with an edge between them."""
    edge = -LEAST / (MOST - LEAST)
    below, above = theme.scale[:3], theme.excess
    scale = [[edge * at / (len(below) - 1), colour] for at, colour in enumerate(below)]
    return scale + [
        [edge + (1 - edge) * at / (len(above) - 1), colour] for at, colour in enumerate(above)
    ]


def _colour_bar(theme: Theme, pixels: int) -> dict[str, object]:
    return {
        "orientation": "h",
        "lenmode": "pixels",
        "len": 210,
        "x": 0,
        "xanchor": "left",
        "xpad": 0,
        "y": 1 + 46 / max(pixels - _HEAD_PIXELS - _FOOT_PIXELS, 1),
        "yanchor": "top",
        "ypad": 0,
        "tickvals": list(_TICKS),
        "ticktext": list(_TICKS.values()),
        "tickfont": {"color": theme.muted},
        "thickness": 10,
        "outlinewidth": 0,
    }


def divergence_line(
    comparison: ValueComparison, *, theme: Theme | str = LIGHT, title: str = ""
) -> go.Figure:
    """Draw the distances along the program, in multiples of the tolerance.

    Args:
        comparison: the comparison.
        theme: colours, by name or as a theme.
        title: heading; none by default.
    """
    theme = theme_of(theme)
    table = along_the_program(comparison)
    figure = go.Figure(layout=titled(_line_layout(theme, table), title))
    places = table["first"].tolist()
    shown = table["excess"].clip(lower=10**LEAST)
    texts = [_place_text(row, comparison.pairs) for row in table.to_dict("records")]
    figure.add_trace(
        go.Scatter(
            name="distance",
            x=places,
            y=_rounded(shown),
            mode="lines",
            line={"color": theme.scale[2], "width": 1.5},
            hovertext=texts,
            hoverinfo="text",
            customdata=table["worst"].tolist(),
            meta={"part": "distance"},
        )
    )
    figure.add_trace(
        go.Scatter(
            name="tolerance",
            x=[-0.5, max(float(table["last"].max()) + 0.5, 0.5)],
            y=[1.0, 1.0],
            mode="lines",
            line={"color": theme.muted, "width": 1.5, "dash": "dot"},
            hoverinfo="skip",
            meta={"part": "tolerance"},
        )
    )
    wrong = np.flatnonzero((table["num_wrong"] > 0) & shown.notna())
    figure.add_trace(
        go.Scatter(
            name="wrong",
            x=[places[at] for at in wrong],
            y=_rounded(shown.iloc[wrong]),
            mode="markers",
            marker={"color": theme.excess[1], "size": 6},
            hovertext=[texts[at] for at in wrong],
            hoverinfo="text",
            customdata=table["worst"].iloc[wrong].tolist(),
            meta={"part": "wrong"},
        )
    )
    return figure


def _rounded(values: pd.Series) -> list[float | None]:
    return [float(f"{value:.3g}") if math.isfinite(value) else None for value in values]


def _place_text(row: Mapping[Any, Any], pairs: pd.DataFrame) -> str:
    first, last = row["first"] + 1, row["last"] + 1
    several = f"worst of tensors {first:,} to {last:,}" if first != last else f"tensor {first:,}"
    if row["worst"] < 0:
        return lines([several, "not comparable"])
    pair = pairs.loc[row["worst"]].to_dict()
    phase = plain(f"step {pair['step']}, {pair['phase']}, {several}")
    return lines([*pair_lines(pair), phase])


def _line_layout(theme: Theme, table: pd.DataFrame) -> go.Layout:
    is_begin = table["step"] != table["step"].shift()
    begins = table.loc[is_begin, ["first", "step"]].to_numpy().tolist()
    every = -(-len(begins) // _MOST_STEP_LABELS)
    made = layout(
        theme, height=_LINE_PIXELS, margin={"l": 64, "r": 12, "t": 34, "b": 44}, showlegend=True
    )
    top = math.log10(table["excess"].fillna(0.0).max() or 1.0)
    made.update(
        xaxis={
            "title": {"text": "step", "standoff": 8},
            "tickmode": "array",
            "tickvals": [place for place, _ in begins[::every]],
            "ticktext": [column_name((step, step)) for _, step in begins[::every]],
            "ticks": "",
            "range": [-0.5, max(float(table["last"].max()) + 0.5, 0.5)],
        },
        yaxis={
            "type": "log",
            "tickmode": "array",
            "tickvals": [10.0**power for power in _TICKS],
            "ticktext": list(_TICKS.values()),
            "range": [LEAST - 0.2, max(top, 1.0) + 0.5],
        },
        legend={
            "orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom",
            "bgcolor": "rgba(0,0,0,0)", "itemclick": False, "itemdoubleclick": False,
        },
    )  # fmt: skip
    return made
