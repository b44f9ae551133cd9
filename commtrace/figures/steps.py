"""Time of each step: exposed communication, overlapped communication, and the rest.

Above `MAX_BARS` steps, a bar is the mean of several consecutive steps.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from commtrace.figures.label import bold, lines
from commtrace.figures.theme import LEGEND, LIGHT, Theme, empty, layout, theme_of, titled
from commtrace.units import text_of_duration

MAX_BARS = 200

PARTS: dict[str, tuple[str, str]] = {
    "exposed": ("exposed communication", "the rank is blocked"),
    "overlapped": ("overlapped communication", "the rank works meanwhile"),
    "working": ("no communication", "the rank works"),
}
"""Parts of a bar, from the bottom: the legend's text, and its meaning."""

OUTLIER = 4
"""Multiple of the median height above which a bar is cut off, so that the others stay readable."""

MOST_NOTES = 8

_HEIGHT = 320
_NOTE_WIDTH, _NOTE_PIXELS = 0.13, 16
"""Width of a height's note as a fraction of the figure's, and its line height in pixels."""
_EDGE = 0.12


def steps(
    table: pd.DataFrame, *, theme: Theme | str = LIGHT, title: str = "", because: str = ""
) -> go.Figure:
    """Draw the bars of the analysis `overlap`: the mean over ranks for each step.

    Time outside of steps is drawn only if there are no steps. `because` is the reason shown if
    there is nothing to draw.
    """
    theme = theme_of(theme)
    inside = table[table["step"] >= 0]
    drawn = step_parts(inside if len(inside) else table)
    if drawn.empty:
        return empty(theme, title=title, what="No communication is in this trace", because=because)
    figure = go.Figure(layout=titled(_layout(theme, drawn), title))
    texts = [_hover_text(row) for row in drawn.itertuples(index=False)]
    for part, (words, _) in PARTS.items():
        figure.add_trace(
            go.Bar(
                name=words,
                x=((drawn["first"] + drawn["last"]) / 2).tolist(),
                y=(drawn[part] / 1e9).tolist(),
                width=(0.86 * (drawn["last"] - drawn["first"] + 1)).tolist(),
                marker={"color": theme.use(part), "line": {"width": 0}},
                hovertext=texts,
                hoverinfo="text",
                meta={"part": part},
            )
        )
    _cut_off(figure, drawn, theme)
    return figure


def step_parts(table: pd.DataFrame, max_bars: int = MAX_BARS) -> pd.DataFrame:
    """Return one row per bar: `first` and `last` step, and means over its steps and ranks, in ns.

    The other columns are `exposed`, `overlapped`, `working`, `lasts` (their sum), `worst_rank` (the
    rank with the most exposed communication) and its `worst_exposed`.
    """
    first_step = table["step"].min() if len(table) else 0
    num_steps = int(table["step"].max() - first_step) + 1 if len(table) else 0
    block = max(-(-num_steps // max_bars), 1)
    known = table[["exposed_ns", "overlapped_ns"]].sum(axis=1)
    parts = pd.DataFrame(
        {
            "block": (table["step"] - first_step) // block,
            "step": table["step"],
            "rank": table["rank"],
            "exposed": table["exposed_ns"].astype("float64"),
            "overlapped": table["overlapped_ns"].astype("float64"),
            "working": (table["duration_ns"] - known).clip(lower=0).astype("float64"),
        }
    )
    bars: Any = parts.groupby("block")
    means = bars[["exposed", "overlapped", "working"]].mean()
    means["lasts"] = means.sum(axis=1)
    means["first"], means["last"] = bars["step"].min(), bars["step"].max()
    by_rank = parts.groupby(["block", "rank"])["exposed"].mean().reset_index()
    worst = by_rank.sort_values(["exposed", "rank"], ascending=[False, True]).groupby("block")
    means["worst_rank"] = worst["rank"].first()
    means["worst_exposed"] = worst["exposed"].first()
    return means.reset_index(drop=True)


def _layout(theme: Theme, drawn: pd.DataFrame) -> go.Layout:
    made = layout(theme, height=_HEIGHT, margin={"l": 64, "r": 12, "t": 34, "b": 48})
    is_outside = drawn["last"].max() < 0
    ticks = {"tickvals": [-1], "ticktext": ["outside of steps"]}
    several = int((drawn["last"] - drawn["first"]).max()) + 1
    words = f"step (a bar is the mean of {several})" if several > 1 else "step"
    middle = (drawn["first"].min() + drawn["last"].max()) / 2
    half = max(drawn["last"].max() - drawn["first"].min() + 1, 3) / 2 + 0.1
    made.update(
        barmode="stack",
        showlegend=True,
        legend=LEGEND,
        xaxis={
            "title": {"text": "" if is_outside else words},
            "tickformat": ",d",
            "showgrid": False,
            "range": [middle - half, middle + half],
        }
        | (ticks if is_outside else {"dtick": 1} if half <= 10 else {}),
        yaxis={"title": {"text": "time, mean over ranks"}, "tickformat": "~s", "ticksuffix": "s"},
    )
    return made


def _cut_off(figure: go.Figure, drawn: pd.DataFrame, theme: Theme) -> None:
    """End the axis above the bars that are no outliers, and annotate the height of the others."""
    is_outlier = drawn["lasts"] > OUTLIER * drawn["lasts"].median()
    if not is_outlier.any():
        return
    figure.update_yaxes(range=[0, 1.25 * drawn.loc[~is_outlier, "lasts"].max() / 1e9])
    whole: Any = figure.layout
    low, high = whole.xaxis.range
    noted: list[float] = []
    for bar in drawn[is_outlier].nlargest(MOST_NOTES, "lasts").itertuples(index=False):
        middle = (bar.first + bar.last) / 2
        place = (middle - low) / (high - low)
        # Adjacent notes would overlap, and notes at an edge would cover the axis labels.
        rows_down = sum(abs(place - other) < _NOTE_WIDTH for other in noted)
        noted.append(place)
        figure.add_annotation(
            text=f"↑ {text_of_duration(bar.lasts)}",
            x=middle,
            y=1,
            yref="paper",
            xanchor="left" if place < _EDGE else "right" if place > 1 - _EDGE else "center",
            xshift=-4 if place < _EDGE else 4 if place > 1 - _EDGE else 0,
            yanchor="top",
            yshift=-_NOTE_PIXELS * rows_down,
            showarrow=False,
            font={"size": 11, "color": theme.ink},
            bgcolor=theme.surface,
        )


def _hover_text(bar: Any) -> str:
    def part(name: str) -> str:
        share = f" ({getattr(bar, name) / bar.lasts:.1%})" if bar.lasts else ""
        return f"{PARTS[name][0]} {text_of_duration(getattr(bar, name))}{share}"

    which = f"step {bar.first}" if bar.first == bar.last else f"steps {bar.first} to {bar.last}"
    return lines(
        (
            bold(which if bar.first >= 0 else "outside of steps"),
            f"{text_of_duration(bar.lasts)}, mean over ranks",
            *(part(name) for name in PARTS),
            f"most exposed: rank {bar.worst_rank}, {text_of_duration(bar.worst_exposed)}",
        )
    )
