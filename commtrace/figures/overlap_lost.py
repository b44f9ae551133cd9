"""Communication of each place: hidden, exposed although it could be hidden, and otherwise exposed.

A row is a place and the reason why its communication was not hidden. Above `MAX_ROWS` rows, those
with the most time that could be hidden are drawn, then those exposed for longest.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from commtrace.figures.label import bold, lines, plain
from commtrace.figures.stacked_bars import fill, row_layout
from commtrace.figures.theme import LIGHT, Theme, empty, theme_of, titled
from commtrace.units import text_of_duration

MAX_ROWS = 24
PARTS: dict[str, tuple[str, str]] = {
    "could hide": ("exposed", "/"),
    "other transfer": ("transfer", ""),
    "waiting for late ranks": ("Wait at N x N", "x"),
    "hidden": ("overlapped", ""),
}
"""Parts of a bar, from the left, with their colours and hatching."""


def overlap_lost(
    table: pd.DataFrame, *, theme: Theme | str = LIGHT, title: str = "", because: str = ""
) -> go.Figure:
    """Draw the bars of the analysis `overlap_lost`.

    `because` is the reason shown if there is nothing to draw.
    """
    theme = theme_of(theme)
    parts = lost_parts(table)
    if parts.empty:
        what = "No communication is known to have been hidden or exposed"
        return empty(theme, title=title, what=what, because=because)
    rows = parts.head(MAX_ROWS).to_dict("records")
    more = f"; {len(rows)} of {len(parts)} places" if len(parts) > len(rows) else ""
    names = [_name(row) for row in rows]
    figure = go.Figure(
        layout=titled(row_layout(theme, names, f"time, mean over ranks{more}", left=310), title)
    )
    texts = [_hover_text(row) for row in rows]
    for part, (use, hatching) in PARTS.items():
        figure.add_trace(
            go.Bar(
                name=part,
                orientation="h",
                x=[row[part] / 1e9 for row in rows],
                y=list(range(len(rows))),
                marker=fill(theme, theme.use(use), hatching),
                hovertext=texts,
                hoverinfo="text",
                meta={"part": part},
            )
        )
    return figure


def lost_parts(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the table that have any time, with a column for each part, in ns.

    A transfer is `other transfer` if it is unknown whether it could be hidden.
    """
    could = table["could_hide_ns"].fillna(0)
    parts = table.assign(
        **{
            "could hide": could,
            "other transfer": (table["transfer_ns"].fillna(0) - could).clip(lower=0),
            "waiting for late ranks": (table["exposed_ns"] - table["transfer_ns"]).fillna(0),
            "hidden": table["hidden_ns"].fillna(0),
        }
    )
    is_any = parts[list(PARTS)].sum(axis="columns") > 0
    return parts[is_any].reset_index(drop=True)


def _name(row: dict[Any, Any]) -> str:
    place = (row["phase"] or "other") + (f" of {row['module']}" if row["module"] else "")
    return plain(f"{row['kind']} in {place}: {row['reason'].replace('_', ' ')}", longest=52)


def _hover_text(row: dict[Any, Any]) -> str:
    times = [f"{part}: {text_of_duration(row[part])}" for part in PARTS if row[part] > 0]
    behind = f"behind {plain(row['behind'])}" if row["behind"] else ""
    title = f"{row['kind']} in {row['phase'] or 'other'}, {row['reason'].replace('_', ' ')}"
    return lines((bold(title), plain(row["module"]), *times, behind))
