"""Communication of each place: hidden, exposed although it could be hidden, and otherwise exposed.

A bar is a place: a kind of call in a phase of a module, in which layers that differ only in their
numbers are one. The longest are on top; above `MAX_ROWS`, the others are not drawn. The hover text
has the reasons why communication was not hidden.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from commtrace.figures.label import bold, layers_folded, lines, path_end, plain
from commtrace.figures.stacked_bars import fill, row_layout
from commtrace.figures.theme import LIGHT, Theme, empty, theme_of, titled
from commtrace.units import text_of_duration

MAX_ROWS = 24
LONGEST_LABEL = 38
PARTS: dict[str, tuple[str, str]] = {
    "could hide": ("exposed", ""),
    "other transfer": ("transfer", ""),
    "waiting for late ranks": ("Wait at N x N", "/"),
    "hidden": ("overlapped", ""),
}
"""Parts of a bar, from the left, with their colours and hatching, which means waiting."""

_BY = ["kind", "mesh_axis", "phase", "place"]
_CHARACTER_PIXELS = 7


def overlap_lost(
    table: pd.DataFrame, *, theme: Theme | str = LIGHT, title: str = "", because: str = ""
) -> go.Figure:
    """Draw the bars of the analysis `overlap_lost`.

    `because` is the reason shown if there is nothing to draw.
    """
    theme = theme_of(theme)
    places = lost_places(table)
    if not places:
        what = "No communication is known to have been hidden or exposed"
        return empty(theme, title=title, what=what, because=because)
    rows = places[:MAX_ROWS]
    more = f"; {len(rows)} of {len(places)} places" if len(places) > len(rows) else ""
    names = _names(rows)
    longest = max(len(line) for name in names for line in name.split("<br>"))
    left = 16 + _CHARACTER_PIXELS * longest
    figure = go.Figure(
        layout=titled(row_layout(theme, names, f"time, mean over ranks{more}", left=left), title)
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


def lost_places(table: pd.DataFrame) -> list[dict[Any, Any]]:
    """Return the places that have any time, the longest bar first, each part of it in ns.

    A transfer is `other transfer` if it is unknown whether it could be hidden. `reasons` are the
    exposed times by reason, and `modules` the number of modules that are one place.
    """
    could = table["could_hide_ns"].fillna(0)
    parts = table.assign(
        **{
            "could hide": could,
            "other transfer": (table["transfer_ns"].fillna(0) - could).clip(lower=0),
            "waiting for late ranks": (table["exposed_ns"] - table["transfer_ns"]).fillna(0),
            "hidden": table["hidden_ns"].fillna(0),
        },
        place=[layers_folded(path) for path in table["module"]],
    )
    found = []
    for keys, of_place in parts.groupby(_BY, sort=False):
        sums = of_place[list(PARTS)].sum()
        if not sums.sum() > 0:
            continue
        by_reason = of_place.groupby("reason")["exposed_ns"].sum()
        found.append(
            dict(zip(_BY, keys, strict=True))
            | sums.to_dict()
            | {
                "modules": of_place["module"].nunique(),
                "reasons": by_reason[by_reason > 0].sort_values(ascending=False).to_dict(),
                "behind": of_place.loc[of_place["could hide"].idxmax(), "behind"],
            }
        )
    return sorted(found, key=lambda row: -sum(row[part] for part in PARTS))


def _names(rows: list[dict[Any, Any]]) -> list[str]:
    """Return the label of each place in two lines: its module, and its kind and phase."""
    has_axes = len({row["mesh_axis"] for row in rows} - {""}) > 1
    return [_name(row, has_axes) for row in rows]


def _name(row: dict[Any, Any], has_axes: bool) -> str:
    num = f" ×{row['modules']}" if row["modules"] > 1 else ""
    module = path_end(row["place"] or "outside of modules", LONGEST_LABEL - len(num))
    axis = f" on {row['mesh_axis']}" if has_axes and row["mesh_axis"] else ""
    kind = plain(f"{row['kind']}{axis}, {row['phase'] or 'other'}", longest=LONGEST_LABEL)
    return lines((plain(module) + num, kind))


def _hover_text(row: dict[Any, Any]) -> str:
    times = [f"{part}: {text_of_duration(row[part])}" for part in PARTS if row[part] > 0]
    reasons = [
        f"{reason.replace('_', ' ')} {text_of_duration(lasts)}"
        for reason, lasts in row["reasons"].items()
    ]
    behind = f"behind {plain(row['behind'])}" if row["behind"] else ""
    title = f"{row['kind']} in {row['phase'] or 'other'}"
    num = f" ({row['modules']} modules)" if row["modules"] > 1 else ""
    why = f"exposed: {', '.join(reasons)}" if reasons else ""
    return lines((bold(plain(title)), plain(row["place"] + num), *times, why, behind))
