"""Bytes from rank to rank as a heat map: a row per sender, a column per receiver.

Above `MAX_SIDE` ranks, a cell stands for a block of adjacent ranks: neither a browser nor a reader
can handle the million cells of a thousand ranks.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from commtrace.figures.label import bold, lines
from commtrace.figures.theme import LIGHT, Theme, empty, layout, theme_of, titled
from commtrace.units import text_of_bytes

MAX_SIDE = 128
MOST_TEXTS = 10
"""Largest number of ranks for which the bytes are written into the cells."""
LOG_FROM = 50
"""Ratio of the largest to the smallest amount above which the colour scale is logarithmic."""

_LEAST_PIXELS, _CELL_PIXELS, _MOST_PIXELS = 300, 22, 560


def matrix(
    table: pd.DataFrame,
    *,
    num_ranks: int = 0,
    theme: Theme | str = LIGHT,
    title: str = "",
    because: str = "",
) -> go.Figure:
    """Draw the heat map of the analysis `matrix`.

    A cell shows the bytes that the rank of its row sends to the rank of its column over the whole
    run; an uncoloured cell means none.

    Args:
        table: The table of the analysis.
        num_ranks: Number of ranks; by default, up to the highest rank in the table.
        theme: Colours, by name or as a theme.
        title: Heading; none by default.
        because: Reason shown if there is nothing to draw.
    """
    theme = theme_of(theme)
    if table.empty:
        return empty(
            theme, title=title, what="No bytes go from rank to rank in this trace", because=because
        )
    size = max(num_ranks, 1 + int(table[["source", "target"]].max().max()))
    block = -(-size // MAX_SIDE)
    sent, calls = _cells(table, size, block)
    labels = [_ranks(place, block, size) for place in range(len(sent))]
    figure = go.Figure(layout=titled(_layout(theme, sent, labels, block), title))
    figure.add_trace(
        go.Heatmap(
            # Cells without bytes stay empty rather than get the lowest colour.
            z=[
                [value if amount else None for value, amount in zip(*row, strict=True)]
                for row in zip(_scaled(sent).tolist(), sent.tolist(), strict=True)
            ],
            text=[[text_of_bytes(value) if value else "" for value in row] for row in sent],
            texttemplate="%{text}" if size <= MOST_TEXTS else "",
            hovertext=_hover_texts(sent, calls, labels),
            hoverinfo="text",
            coloraxis="coloraxis",
            xgap=1 if len(sent) <= 64 else 0,
            ygap=1 if len(sent) <= 64 else 0,
        )
    )
    return figure


def _cells(table: pd.DataFrame, size: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes and the calls of each pair of blocks of ranks."""
    side = -(-size // block)
    place = (table["source"] // block).to_numpy(), (table["target"] // block).to_numpy()
    sent, calls = np.zeros((side, side)), np.zeros((side, side), dtype="int64")
    # `+=` would count a pair that occurs several times only once.
    np.add.at(sent, place, table["wire_bytes"].to_numpy())
    np.add.at(calls, place, table["num_calls"].to_numpy())
    return sent, calls


def _is_log(sent: np.ndarray) -> bool:
    some = sent[sent > 0]
    return bool(len(some)) and some.max() > LOG_FROM * some.min()


def _scaled(sent: np.ndarray) -> np.ndarray:
    """Return the values for the colour scale: bytes, or their logarithm with 0 for no bytes."""
    if not _is_log(sent):
        return sent
    return np.log10(sent, out=np.zeros_like(sent), where=sent > 0)


def _layout(theme: Theme, sent: np.ndarray, labels: list[str], block: int) -> go.Layout:
    pixels = min(max(_LEAST_PIXELS, 110 + _CELL_PIXELS * len(sent)), _MOST_PIXELS)
    made = layout(theme, height=pixels, margin={"l": 64, "r": 8, "t": 48, "b": 48})
    every = -(-len(sent) // 16)
    ranks = "rank" if block == 1 else f"ranks, {block} to a cell"
    ticks = {
        "tickmode": "array",
        "tickvals": list(range(0, len(sent), every)),
        "ticktext": labels[::every],
        "showgrid": False,
        "constrain": "domain",
        "ticks": "",
    }
    made.update(
        xaxis=ticks | {"title": {"text": f"to {ranks}"}, "constraintoward": "left"},
        yaxis=ticks
        | {
            "title": {"text": f"from {ranks}"},
            "autorange": "reversed",
            "scaleanchor": "x",
            "constraintoward": "top",
        },
        coloraxis={
            "colorscale": [
                [place / (len(theme.scale) - 1), colour] for place, colour in enumerate(theme.scale)
            ],
            "colorbar": _colour_bar(theme, sent) | {"y": 1 + 40 / (pixels - 96)},
            **_colour_range(sent),
        },
    )
    return made


def _colour_range(sent: np.ndarray) -> dict[str, float]:
    """Return the range of the colour scale, from 0 or, if logarithmic, from a power of ten."""
    most = float(sent.max())
    if not _is_log(sent):
        return {"cmin": 0.0, "cmax": most}
    return {"cmin": math.floor(math.log10(sent[sent > 0].min())), "cmax": math.log10(most)}


def _colour_bar(theme: Theme, sent: np.ndarray) -> dict[str, object]:
    ends = _colour_range(sent)
    if _is_log(sent):
        values = [float(power) for power in range(int(ends["cmin"]), int(ends["cmax"]) + 1)]
        texts = [text_of_bytes(10**power) for power in values]
    else:
        values = [ends["cmax"] * half / 2 for half in range(3)]
        texts = [text_of_bytes(value) for value in values]
    return {
        "orientation": "h",
        "lenmode": "pixels",
        "len": 260,
        "x": 0,
        "xanchor": "left",
        "xpad": 0,
        "yanchor": "top",  # plotly 7.1 moves the figure's title if a bar overlaps it
        "ypad": 0,
        "tickvals": values,
        "ticktext": texts,
        "tickfont": {"color": theme.muted},
        "thickness": 10,
        "outlinewidth": 0,
    }


def _ranks(place: int, block: int, size: int) -> str:
    first, last = place * block, min((place + 1) * block, size) - 1
    return f"{first}" if first == last else f"{first}–{last}"


def _hover_texts(sent: np.ndarray, calls: np.ndarray, labels: list[str]) -> list[list[str]]:
    rank = "ranks" if any("–" in label for label in labels) else "rank"
    return [
        [
            lines(
                (
                    bold(f"{rank} {source} to {rank} {target}"),
                    f"{text_of_bytes(sent[i, j])} in {calls[i, j]:,} calls"
                    if calls[i, j]
                    else "nothing is sent",
                )
            )
            for j, target in enumerate(labels)
        ]
        for i, source in enumerate(labels)
    ]
