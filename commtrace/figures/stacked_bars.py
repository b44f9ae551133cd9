"""Parts of the figures that stack bars: the fill of a bar, and the layout with a row per bar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from commtrace.figures.theme import LEGEND, Theme, layout

_ROW_PIXELS, _LEAST_ROW_PIXELS, _MOST_PIXELS = 34, 11, 900
_MOST_LABELS = 32


def fill(
    theme: Theme,
    colour: str,
    hatching: str = "",
    *,
    lines: str = "",
    size: int = 6,
    solidity: float = 0.4,
) -> dict[str, Any]:
    """Return the marker of a bar: solid, or hatched by lines of the same or another colour."""
    look: dict[str, Any] = {"color": colour, "line": {"width": 0}}
    if hatching:
        hatched = {"shape": hatching, "size": size, "solidity": solidity}
        look["pattern"] = hatched | {"fgcolor": lines or colour, "bgcolor": theme.surface}
    return look


def row_layout(
    theme: Theme,
    labels: Sequence[str],
    title: str,
    *,
    left: int,
    top: int = 34,
    around: int = 90,
    least: int = 190,
) -> go.Layout:
    """Return the layout of horizontal bars of time, a row per label, the first on top.

    Args:
        theme: The colours.
        labels: The label of each row.
        title: The title of the time axis.
        left: The margin in pixels for the labels.
        top: The margin in pixels for the legend.
        around: The height in pixels of everything but the rows.
        least: The least height in pixels.
    """
    num = len(labels)
    row = max(min(_ROW_PIXELS, _MOST_PIXELS / num), _LEAST_ROW_PIXELS)
    made = layout(
        theme,
        height=max(around + round(row * num), least),
        margin={"l": left, "r": 16, "t": top, "b": 48},
    )
    every = -(-num // _MOST_LABELS)
    made.update(
        barmode="stack",
        bargap=0.28,
        showlegend=True,
        legend=LEGEND,
        xaxis={
            "title": {"text": title},
            "tickformat": "~s",
            "ticksuffix": "s",
            "rangemode": "tozero",
        },
        yaxis={
            "range": [num - 0.5, -0.5],
            "tickmode": "array",
            "tickvals": list(range(0, num, every)),
            "ticktext": list(labels[::every]),
            "showgrid": False,
            "ticks": "",
        },
    )
    return made
