"""busbw over message size, by kind: after the last arrival, and from issue with the wait for it.

Both axes are logarithmic. Horizontal lines are the references of the analysis: the speed of a link,
or the best busbw of a kind, which the legend has, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from commtrace.analyze.traffic.bandwidth import BEST, LINK
from commtrace.figures.label import bold, lines, plain
from commtrace.figures.sizes import MOST_TICKS, text_of_power
from commtrace.figures.theme import LEGEND, LIGHT, Theme, empty, layout, theme_of, titled
from commtrace.units import counted, text_of_bytes

AFTER, WITH_WAIT = "after the last arrival", "from issue, with the wait"
CURVES = {AFTER: ("busbw_after", "solid", ""), WITH_WAIT: ("busbw", "dot", "-open")}
"""Curves of a kind: column of `curve_points`, dash of the line, and variant of the symbols."""

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "hexagon")
"""Symbols of the kinds, so that they are distinguishable without colours."""

_HEIGHT, _LEGEND_ROW = 300, 19


def bandwidth(
    table: pd.DataFrame, *, theme: Theme | str = LIGHT, title: str = "", because: str = ""
) -> go.Figure:
    """Draw the curves of the analysis `bandwidth`; groups of a mesh axis are drawn together.

    `because` is the reason shown if there is nothing to draw.
    """
    theme = theme_of(theme)
    points = curve_points(table)
    if points.empty:
        what = "No call of known size has a known bandwidth in this trace"
        return empty(theme, title=title, what=what, because=because)
    references = reference_lines(table)
    figure = go.Figure(layout=titled(_layout(theme, points, references), title))
    for place, (name, of_curve) in enumerate(points.groupby("name", sort=False)):
        symbol = SYMBOLS[place % len(SYMBOLS)]
        _add_curves(figure, theme, str(name), of_curve, symbol)
    _add_references(figure, theme, references)
    for words, (_, dash, _) in CURVES.items():
        figure.add_trace(
            go.Scatter(
                name=words,
                # plotly leaves traces with empty arrays out of the legend.
                x=[None],
                y=[None],
                mode="lines",
                line={"color": theme.muted, "dash": dash},
                hoverinfo="skip",
                meta={"part": "legend"},
            )
        )
    return figure


def curve_points(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row per kind, mesh axis and power of two with a known busbw.

    The columns are `name` of the curve, `kind`, `from_bytes`, `payload` (mean of a call), `busbw`
    and `busbw_after` (bytes/s, nan if unknown), `num_calls`, `num_after` (calls whose last arrival
    is known), `best`, and `kernels`, the algorithms and protocols.
    """
    known = table[(table["from_bytes"] > 0) & table["busbw_bytes_per_s"].notna()]
    after = known["busbw_after_arrival_bytes_per_s"]
    parts = pd.DataFrame(
        {
            "name": _names(known),
            "kind": known["kind"],
            "from_bytes": known["from_bytes"],
            "num_calls": known["num_calls"],
            "num_after": known["num_after_arrival"],
            "payload": known["payload_bytes"].astype("float64"),
            "time": known["time_ns"].astype("float64"),
            "bus": known["busbw_bytes_per_s"] * known["time_ns"],
            "time_after": known["after_arrival_ns"].astype("float64").where(after.notna()),
            "bus_after": after * known["after_arrival_ns"],
        }
    )
    by = ["name", "kind", "from_bytes"]
    points = parts.groupby(by).sum(min_count=1)
    points["payload"] /= points["num_calls"]
    points["busbw"] = points["bus"] / points["time"]
    points["busbw_after"] = points["bus_after"] / points["time_after"]
    of_point = [parts[name] for name in by]
    points["best"] = known["best_busbw_bytes_per_s"].groupby(of_point).max()
    kernels = (known["algorithm"] + " " + known["protocol"]).str.strip()
    points["kernels"] = kernels.groupby(of_point).agg(_listed)
    return points.reset_index()


def _names(table: pd.DataFrame) -> pd.Series:
    """Return the curve of each row: its kind, with the mesh axis if the kind occurs on several."""
    is_several = table.groupby("kind")["mesh_axis"].transform("nunique") > 1
    axis = (" on " + table["mesh_axis"]).where(table["mesh_axis"] != "", " on other groups")
    return table["kind"] + axis.where(is_several, "")


def _listed(names: pd.Series) -> str:
    return ", ".join(sorted({*names} - {""}))


@dataclass(frozen=True, slots=True)
class Reference:
    """A horizontal line: its label, its speed in bytes/s, and its kind; a link has none."""

    label: str
    speed: float
    kind: str = ""


def reference_lines(table: pd.DataFrame) -> list[Reference]:
    """Return the references of a table, the fastest first.

    The best of a kind is taken over all groups. A link is named after its mesh axes if there are
    several links.
    """
    known = table[table["reference_bytes_per_s"].notna()]
    links = known[known["reference_is"] == LINK].groupby("reference_bytes_per_s")["mesh_axis"]
    found = []
    for speed, names in links:
        axes = f" of {_listed(names)}" if links.ngroups > 1 and _listed(names) else ""
        found.append(Reference(f"link{axes}", float(str(speed))))
    best = known[known["reference_is"] == BEST].groupby("kind")["reference_bytes_per_s"].max()
    found += [Reference(f"best {kind}", speed, str(kind)) for kind, speed in best.items()]
    return sorted(found, key=lambda each: -each.speed)


def _add_curves(
    figure: go.Figure, theme: Theme, name: str, points: pd.DataFrame, symbol: str
) -> None:
    colour = theme.kind(points["kind"].iloc[0])
    is_in_legend = True
    for words, (column, dash, variant) in CURVES.items():
        known = points[points[column].notna()]
        if known.empty:
            continue
        figure.add_trace(
            go.Scatter(
                name=plain(name),
                x=known["payload"].tolist(),
                y=known[column].tolist(),
                mode="lines+markers",
                line={"color": colour, "dash": dash, "width": 2},
                marker={"color": colour, "symbol": f"{symbol}{variant}", "size": 8},
                legendgroup=plain(name),
                showlegend=is_in_legend,
                hovertext=[_hover_text(row, words) for row in known.itertuples(index=False)],
                hoverinfo="text",
                meta={"kind": points["kind"].iloc[0], "part": words},
            )
        )
        is_in_legend = False


def _add_references(figure: go.Figure, theme: Theme, references: Sequence[Reference]) -> None:
    """Draw the lines; the legend has their speeds, since labels would lie on other lines."""
    whole: Any = figure.layout
    left, right = (10**edge for edge in whole.xaxis.range)
    for each in references:
        colour = theme.kind(each.kind) if each.kind else theme.ink
        text = f"{plain(each.label)} {text_of_bytes(each.speed)}/s"
        figure.add_trace(
            go.Scatter(
                name=text,
                x=[left, right],
                y=[each.speed, each.speed],
                mode="lines",
                line={"color": colour, "dash": "dash", "width": 1},
                hovertext=text,
                hoverinfo="text",
                meta={"part": "reference"},
            )
        )


def _layout(theme: Theme, points: pd.DataFrame, references: Sequence[Reference]) -> go.Layout:
    num_entries = points["name"].nunique() + len(references) + len(CURVES)
    height = _HEIGHT + _LEGEND_ROW * -(-num_entries // 2)
    made = layout(theme, height=height, margin={"l": 88, "r": 12, "t": 34, "b": 48})
    speeds = [
        *points["busbw"],
        *points["busbw_after"].dropna(),
        *[each.speed for each in references],
    ]
    low, high = math.log10(min(speeds)), math.log10(max(speeds))
    first, last = math.log10(points["payload"].min()), math.log10(points["payload"].max())
    sizes = [*_powers(points["from_bytes"].min(), points["from_bytes"].max())]
    rates = [*_decades(low - 0.1, high + 0.1)]
    made.update(
        showlegend=True,
        legend=LEGEND,
        xaxis={
            "title": {"text": "payload of a call"},
            "type": "log",
            "range": [first - 0.2, last + 0.2],
            "tickmode": "array",
            "tickvals": sizes,
            "ticktext": [text_of_power(size) for size in sizes],
            "tickangle": 0,
        },
        yaxis={
            "title": {"text": "busbw"},
            "type": "log",
            "range": [low - 0.1, high + 0.1],
            "tickmode": "array",
            "tickvals": rates,
            "ticktext": [f"{text_of_bytes(rate)}/s" for rate in rates],
        },
    )
    return made


def _powers(least: int, most: int) -> Iterator[int]:
    """Yield powers of two for the labels of an axis, including `least`, at most `MOST_TICKS`."""
    first, last = int(least).bit_length() - 1, int(most).bit_length()
    every = -(-(last - first + 1) // MOST_TICKS)
    return (1 << power for power in range(first, last + 1, every))


def _decades(low: float, high: float) -> Iterator[float]:
    """Yield the ticks of a logarithmic axis: powers of ten, and parts of them in a short range."""
    parts = (1, 2, 5) if high - low < 2 else (1,)
    for power in range(math.floor(low), math.ceil(high)):
        yield from (part * 10.0**power for part in parts if low <= math.log10(part) + power <= high)


def _hover_text(row: Any, words: str) -> str:
    speed = row.busbw_after if words == AFTER else row.busbw
    num = row.num_after if words == AFTER else row.num_calls
    best = f"best collective {text_of_bytes(row.best)}/s" if row.best == row.best else ""
    return lines(
        (
            bold(plain(row.name)),
            f"{text_of_power(row.from_bytes)} to {text_of_power(2 * row.from_bytes)} each",
            f"busbw {text_of_bytes(speed)}/s {words}",
            f"in {counted(num, 'call')} of all ranks",
            best if words == AFTER else "",
            plain(row.kernels),
        )
    )
