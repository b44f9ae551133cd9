"""Histogram of message sizes: a bar per power of two, stacked by kind, with its name if it fits."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from commtrace.analyze.measures.measures import MEASURE
from commtrace.errors import UsageError
from commtrace.figures.label import bold, lines, plain
from commtrace.figures.theme import (
    LEGEND,
    LIGHT,
    Theme,
    empty,
    layout,
    readable_on,
    theme_of,
    titled,
)
from commtrace.units import known_note, text_of_bytes, text_of_duration

VALUES: dict[str, tuple[str, str]] = {
    name: (f"{MEASURE[name].long_heading.lower()} of all ranks", unit)
    for name, unit in (("num_calls", ""), ("payload_bytes", "B"), ("blocked_ns", "s"))
}
"""Measures that the bars can show: title of the axis, and its unit."""

_HEIGHT = 320
MOST_TICKS = 10
"""Largest number of tick labels, so that they fit upright in half a page's width."""


def sizes(
    table: pd.DataFrame,
    *,
    value: str = "num_calls",
    theme: Theme | str = LIGHT,
    title: str = "",
    because: str = "",
) -> go.Figure:
    """Draw the histogram of the analysis `sizes`.

    The axis includes every power of two between the smallest and the largest, even if it is empty.

    Args:
        table: The table of the analysis.
        value: Measure that the bars show, one of `VALUES`.
        theme: Colours, by name or as a theme.
        title: Heading; none by default.
        because: Reason shown if there is nothing to draw.

    Raises:
        UsageError: There is no such value.
    """
    theme = theme_of(theme)
    if value not in VALUES:
        raise UsageError(f"no histogram of {value!r}", attempt=f"one of {', '.join(VALUES)}")
    if table.empty:
        return empty(
            theme, title=title, what="No message of known size is in this trace", because=because
        )
    places = _places(table)
    figure = go.Figure(layout=titled(_layout(theme, places, value), title))
    by = ["kind", "from_bytes"]
    # An unknown blocked time, which is negative, has no height.
    sums = (
        table.assign(blocked_ns=table["blocked_ns"].clip(lower=0))
        .groupby(by)[[*VALUES, "num_untimed"]]
        .sum()
    )
    order = sums.groupby("kind")["num_calls"].sum().sort_values(ascending=False, kind="stable")
    for kind in order.index:
        of_kind, colour = sums.loc[kind], theme.kind(kind)
        figure.add_trace(
            go.Bar(
                name=plain(kind),
                x=[places[size] for size in of_kind.index],
                y=(of_kind[value] / (1e9 if value == "blocked_ns" else 1)).tolist(),
                marker={"color": colour, "line": {"width": 0}},
                text=plain(kind),
                textposition="inside",
                insidetextanchor="middle",
                insidetextfont={"color": readable_on(colour)},
                hovertext=[_hover_text(kind, row) for row in of_kind.reset_index().itertuples()],
                hoverinfo="text",
                meta={"kind": kind},
            )
        )
    return figure


def _places(table: pd.DataFrame) -> dict[int, int]:
    """Return the position of each power of two on the axis; 0 is leftmost."""
    some = table.loc[table["from_bytes"] > 0, "from_bytes"]
    powers = (
        range(int(some.min()).bit_length() - 1, int(some.max()).bit_length()) if len(some) else ()
    )
    found = [0] * bool((table["from_bytes"] == 0).any()) + [1 << power for power in powers]
    return {size: place for place, size in enumerate(found)}


def _layout(theme: Theme, places: dict[int, int], value: str) -> go.Layout:
    made = layout(theme, height=_HEIGHT, margin={"l": 64, "r": 12, "t": 34, "b": 48})
    axis_title, unit = VALUES[value]
    every = -(-len(places) // MOST_TICKS)
    made.update(
        barmode="stack",
        bargap=0.12,
        showlegend=True,
        legend=LEGEND,
        uniformtext={"mode": "hide", "minsize": 9},
        xaxis={
            "title": {"text": "payload of a call, from this up to twice it"},
            "tickmode": "array",
            "tickvals": list(places.values())[::every],
            "ticktext": [text_of_power(size) for size in places][::every],
            "tickangle": 0,
            "showgrid": False,
            "range": [-0.6, max(len(places), 3) - 0.4],
        },
        yaxis={"title": {"text": axis_title}, "tickformat": "~s", "ticksuffix": unit},
    )
    return made


def text_of_power(size: int) -> str:
    """Format a power of two in binary units.

    >>> text_of_power(2048)
    '2 KiB'
    """
    place = max(size.bit_length() - 1, 0) // 10
    unit = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")[place]
    return f"{size >> (10 * place)} {unit}"


def _hover_text(kind: str, row: Any) -> str:
    size = row.from_bytes
    calls = f"{row.num_calls:,} call{'' if row.num_calls == 1 else 's'} of all ranks"
    return lines(
        (
            bold(plain(kind)),
            f"{text_of_power(size)} to {text_of_power(2 * size)} each" if size else "no payload",
            calls,
            f"payload {text_of_bytes(row.payload_bytes)}" if size else "",
            f"exposed {_exposed(row)}",
        )
    )


def _exposed(row: Any) -> str:
    note = known_note(row.num_calls - row.num_untimed, row.num_calls)
    time = "" if row.num_untimed == row.num_calls else text_of_duration(row.blocked_ns)
    return ", ".join(filter(None, (time, note)))
