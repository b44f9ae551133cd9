"""Rows of all-to-alls from rank to rank, a heat map for each layer.

The layers are those with the most uneven loads, `MOST_LAYERS` at most; above `MAX_SIDE` ranks, a
cell stands for a block of adjacent ranks. A combine is drawn in the direction of its dispatch: the
rank of the experts is the column.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from commtrace.figures.label import bold, lines, plain
from commtrace.figures.theme import LIGHT, Theme, empty, layout, theme_of, titled
from commtrace.units import text_of_bytes

MOST_LAYERS = 8
MAX_SIDE = 64
_COLUMNS = 2
_CELL_PIXELS, _HEAD_PIXELS = 220, 70


def splits(
    table: pd.DataFrame, *, theme: Theme | str = LIGHT, title: str = "", because: str = ""
) -> go.Figure:
    """Draw the heat maps of the analysis `all_to_all_splits`, over all steps.

    Args:
        table: The table of the analysis.
        theme: Colours, by name or as a theme.
        title: Heading; none by default.
        because: Reason shown if there is nothing to draw.
    """
    theme = theme_of(theme)
    layers = _layers(table)
    if not layers:
        what = "No all-to-all with splits is in this trace"
        return empty(theme, title=title, what=what, because=because)
    figure = go.Figure(layout=titled(_layout(theme, layers, _num_layers(table)), title))
    for number, (name, sent) in enumerate(layers):
        axis = "" if number == 0 else str(number + 1)
        labels = _labels(table, len(sent))
        figure.add_trace(
            go.Heatmap(
                z=[[value or None for value in row] for row in sent.tolist()],
                x=labels,
                y=labels,
                xaxis=f"x{axis}",
                yaxis=f"y{axis}",
                hovertext=_hover_texts(name, sent, labels),
                hoverinfo="text",
                coloraxis="coloraxis",
                xgap=1,
                ygap=1,
            )
        )
    return figure


def _towards_experts(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with source and target of a combine exchanged."""
    back = table["direction"] == "combine"
    return table.assign(
        source=table["source"].where(~back, table["target"]),
        target=table["target"].where(~back, table["source"]),
        layer=table["module"].where(table["module"] != "", table["group"].map("group {}".format)),
    )


def _num_layers(table: pd.DataFrame) -> int:
    return _towards_experts(table)["layer"].nunique()


def _layers(table: pd.DataFrame) -> list[tuple[str, np.ndarray]]:
    """Return [source, target] bytes of the layers drawn, in their order of the table."""
    if table.empty:
        return []
    rows = _towards_experts(table)
    block = _block(table)
    rows = rows.assign(source=rows["source"] // block, target=rows["target"] // block)
    load = rows.groupby(["layer", "target"])["sent_bytes"].sum().astype("float64")
    of_layer = load.groupby("layer")
    uneven = (of_layer.max() / of_layer.mean().clip(lower=1)).nlargest(MOST_LAYERS).index
    side = 1 + int(rows[["source", "target"]].max().max())
    found = []
    for name, own in rows[rows["layer"].isin(uneven)].groupby("layer", sort=True):
        sent = np.zeros((side, side))
        np.add.at(sent, (own["source"].to_numpy(), own["target"].to_numpy()), own["sent_bytes"])
        found.append((str(name), sent))
    return found


def _block(table: pd.DataFrame) -> int:
    """Return the number of ranks of a cell."""
    return -(-(1 + int(table[["source", "target"]].max().max())) // MAX_SIDE)


def _labels(table: pd.DataFrame, side: int) -> list[str]:
    block = _block(table)
    first = [place * block for place in range(side)]
    return [f"{rank}" if block == 1 else f"{rank}–{rank + block - 1}" for rank in first]


def _layout(theme: Theme, layers: list[tuple[str, np.ndarray]], num_layers: int) -> go.Layout:
    num = len(layers)
    rows, columns = -(-num // _COLUMNS), min(num, _COLUMNS)
    height = _HEAD_PIXELS + rows * (_CELL_PIXELS + 40)
    made = layout(theme, height=height, margin={"l": 64, "r": 90, "t": 48, "b": 48})
    share = 1 / rows
    axes: dict[str, Any] = {}
    notes = []
    for number, (name, _) in enumerate(layers):
        row, column = divmod(number, columns)
        key = "" if number == 0 else str(number + 1)
        top = 1 - row * share
        ends = [column / columns, (column + 0.84) / columns]
        common = {
            "showgrid": False,
            "ticks": "",
            "type": "category",
            "tickfont": {"color": theme.muted},
        }
        axes[f"xaxis{key}"] = common | {
            "domain": ends,
            "anchor": f"y{key}",
            "title": _axis_title(theme, "to the experts of rank" if row == rows - 1 else ""),
        }
        axes[f"yaxis{key}"] = common | {
            "domain": [top - share * 0.78, top - share * 0.06],
            "anchor": f"x{key}",
            "autorange": "reversed",
            "title": _axis_title(theme, "from rank" if column == 0 else ""),
        }
        notes.append(_note(theme, plain(name), ends[0], top))
    if num < num_layers:
        text = f"the {num} most uneven of {num_layers:,} layers"
        notes.append(_note(theme, text, 0, 1, shift=22))
    made.update(
        **axes,
        annotations=notes,
        coloraxis={
            "colorscale": [
                [place / (len(theme.scale) - 1), colour] for place, colour in enumerate(theme.scale)
            ],
            "cmin": 0,
            "colorbar": {
                "tickformat": "~s",
                "ticksuffix": "B",
                "tickfont": {"color": theme.muted},
                "thickness": 10,
                "outlinewidth": 0,
            },
        },
    )
    return made


def _axis_title(theme: Theme, text: str) -> dict[str, Any]:
    return {"text": text, "font": {"color": theme.muted}}


def _note(theme: Theme, text: str, x: float, y: float, *, shift: int = 0) -> dict[str, Any]:
    return {
        "text": text,
        "x": x,
        "y": y,
        "xref": "paper",
        "yref": "paper",
        "xanchor": "left",
        "yanchor": "middle",
        "yshift": shift,
        "showarrow": False,
        "font": {"size": 12, "color": theme.ink},
    }


def _hover_texts(name: str, sent: np.ndarray, labels: list[str]) -> list[list[str]]:
    mean = sent.sum(0).mean() or 1.0
    return [
        [
            lines(
                (
                    bold(plain(name)),
                    f"from rank {source} to the experts of rank {target}",
                    text_of_bytes(sent[i, j]),
                    f"rank {target} receives {sent[:, j].sum() / mean:.2g} times the mean",
                )
            )
            for j, target in enumerate(labels)
        ]
        for i, source in enumerate(labels)
    ]
