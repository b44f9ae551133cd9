"""Load of experts, or of their ranks, over the steps: a line for each, relative to the mean.

The lines show the layer with the highest load, and its experts or ranks with the loads farthest
from the mean, `MOST_LINES` at most. Above `MOST_POINTS` steps, a point is the mean of several.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from commtrace.errors import UsageError
from commtrace.figures.label import bold, lines, plain
from commtrace.figures.theme import LEGEND, LIGHT, Theme, empty, layout, theme_of, titled

MOST_LINES = 8
MOST_POINTS = 200
_HEIGHT = 320
_PLACE = ["group", "module", "phase", "direction", "source_file", "source_line"]


def expert_load(
    table: pd.DataFrame,
    *,
    module: str = "",
    theme: Theme | str = LIGHT,
    title: str = "",
    because: str = "",
) -> go.Figure:
    """Draw the lines of the analysis `expert_load` for a single layer.

    Args:
        table: The table of the analysis.
        module: The layer; by default, the layer with the highest load relative to the mean.
        theme: Colours, by name or as a theme.
        title: Heading; none by default.
        because: Reason shown if there is nothing to draw.

    Raises:
        UsageError: There is no such layer.
    """
    theme = theme_of(theme)
    if module:
        known = sorted(set(table["module"]))
        if module not in known:
            raise UsageError(f"no layer {module!r} with experts", attempt=", ".join(known))
        table = table[table["module"] == module]
    if table.empty:
        what = "No load of experts is in this trace"
        return empty(theme, title=title, what=what, because=because)
    place, drawn = _lines(table)
    figure = go.Figure(layout=titled(_layout(theme, drawn), title))
    colours = [*theme.kinds.values()]
    for number, ((rank, expert), points) in enumerate(drawn.items()):
        name = f"rank {rank}" if expert < 0 else f"expert {expert} of rank {rank}"
        figure.add_trace(
            go.Scatter(
                name=name,
                x=points.index.tolist(),
                y=points.tolist(),
                mode="lines+markers" if len(points) <= 40 else "lines",
                line={"color": colours[number % len(colours)], "width": 2},
                hovertext=[
                    lines(
                        (
                            bold(name),
                            plain(_text(place)),
                            f"step {step}",
                            f"{value:.2f} of the mean",
                        )
                    )
                    for step, value in points.items()
                ],
                hoverinfo="text",
                meta={"rank": rank, "expert": expert},
            )
        )
    return figure


def _lines(table: pd.DataFrame) -> tuple[dict[str, Any], dict[tuple[int, int], pd.Series]]:
    """Return the place that is drawn, and its points by rank and expert."""
    means = table.groupby([*_PLACE, "rank", "expert"])["ratio"].mean()
    highest: Any = means.groupby(level=_PLACE).max().idxmax() if means.notna().any() else None
    place = dict(zip(_PLACE, highest or table[_PLACE].iloc[0], strict=True))
    own = table
    for name, value in place.items():
        own = own[own[name] == value]
    steps = own["step"].drop_duplicates().sort_values()
    block = -(-len(steps) // MOST_POINTS)
    first = dict(zip(steps, steps.iloc[::block].repeat(block).iloc[: len(steps)], strict=True))
    ratio = own["ratio"].groupby([own["rank"], own["expert"], own["step"].map(first)]).mean()
    far = (ratio - 1).abs().groupby(level=["rank", "expert"]).mean()
    kept = sorted(far.nlargest(MOST_LINES).index)
    return place, {key: ratio.loc[key] for key in kept}


def _text(place: dict[str, Any]) -> str:
    where = place["module"] or f"group {place['group']}"
    return f"{where}, {place['phase']}" if place["phase"] else where


def _layout(theme: Theme, drawn: dict[tuple[int, int], pd.Series]) -> go.Layout:
    made = layout(theme, height=_HEIGHT, margin={"l": 64, "r": 12, "t": 34, "b": 48})
    most = max((float(each.max()) for each in drawn.values()), default=1.0)
    made.update(
        showlegend=True,
        legend=LEGEND,
        xaxis={"title": {"text": "step"}, "tickformat": ",d", "showgrid": False},
        yaxis={"title": {"text": "load relative to the mean"}, "range": [0, 1.1 * max(most, 1)]},
        shapes=[
            {
                "type": "line",
                "xref": "paper",
                "x0": 0,
                "x1": 1,
                "y0": 1,
                "y1": 1,
                "line": {"color": theme.muted, "width": 1, "dash": "dot"},
            }
        ],
    )
    return made
