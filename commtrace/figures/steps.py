"""Time of each step: exposed communication, overlapped communication, and the rest.

Communication is a part of its own if it is unknown whether it is exposed. If not even its duration
is known, that part is the rank's whole step.

Above `MAX_BARS` steps, a bar is the mean of several consecutive steps. A first step that takes much
longer than the others is warm-up, and paler.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from commtrace.analyze.measures.steady_steps import long_steps
from commtrace.analyze.waits.stragglers import stands_out
from commtrace.figures.label import bold, lines
from commtrace.figures.stacked_bars import fill
from commtrace.figures.theme import LEGEND, LIGHT, Theme, empty, layout, theme_of, titled
from commtrace.units import known_note, text_of_duration

MAX_BARS = 200

UNKNOWN = "not known"
PARTS: dict[str, tuple[str, str]] = {
    "exposed": ("exposed communication", "the rank is blocked"),
    "overlapped": ("overlapped communication", "the rank works meanwhile"),
    UNKNOWN: ("exposed or overlapped, not known which", "the calls were not timed"),
    "working": ("no communication", "the rank works"),
}
"""Parts of a bar, from the bottom: the legend's text, and its meaning."""

OUTLIER = 4
"""Multiple of the median height above which a bar is cut off, so that the others stay readable."""

MOST_NOTES = 8

_HEIGHT = 320
_NOTE_WIDTH, _LONG_NOTE_WIDTH, _NOTE_PIXELS = 0.13, 0.26, 16
"""Widths of the notes of a height and of warm-up, as fractions of the figure's; its line height
in pixels."""
_EDGE = 0.12
_LATEST_WARM_UP = 1
"""Largest number that the first step of a program has."""
_PALE = 0.45


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
    texts = [_hover_text(row) for row in drawn.to_dict("records")]
    warm_up = drawn["is_warm_up"]
    opacity = {"opacity": [_PALE if each else 1.0 for each in warm_up]} if warm_up.any() else {}
    for part, (words, _) in PARTS.items():
        if part == UNKNOWN and not drawn[part].any():
            continue
        figure.add_trace(
            go.Bar(
                name=words,
                x=((drawn["first"] + drawn["last"]) / 2).tolist(),
                y=(drawn[part] / 1e9).tolist(),
                width=(0.86 * (drawn["last"] - drawn["first"] + 1)).tolist(),
                marker=_marker(part, theme) | opacity,
                hovertext=texts,
                hoverinfo="text",
                meta={"part": part},
            )
        )
    _cut_off(figure, drawn, theme)
    return figure


def step_parts(table: pd.DataFrame, max_bars: int = MAX_BARS) -> pd.DataFrame:
    """Return a row per bar: `first` and `last` step, and means over its steps and ranks, in ns.

    The other columns are `PARTS`, `lasts` (their sum), `worst_rank` (the rank with the most exposed
    communication; -1 if unknown, or if none stands out), its `worst_exposed`, `num_calls`,
    `num_untimed`, and `is_warm_up`.
    """
    # Not the number of the step: a run may have recorded every Nth one.
    place = table["step"].rank(method="dense").astype("int64") - 1
    num_steps = int(place.max()) + 1 if len(table) else 0
    block = max(-(-num_steps // max_bars), 1)
    duration, exposed, overlapped, unknown = (
        table[f"{name}_ns"].clip(lower=0).astype("float64")
        for name in ("duration", "exposed", "overlapped", "unknown")
    )
    unknown = unknown.where(table["unknown_ns"] >= 0, duration)
    parts = pd.DataFrame(
        {
            "block": place // block,
            "step": table["step"],
            "rank": table["rank"],
            "exposed": exposed,
            "overlapped": overlapped,
            UNKNOWN: unknown,
            "working": (duration - exposed - overlapped - unknown).clip(lower=0),
            "num_calls": table["num_calls"],
            "num_untimed": table["num_untimed"],
        }
    )
    bars: Any = parts.groupby("block")
    means = bars[list(PARTS)].mean()
    means["lasts"] = means.sum(axis=1)
    means["first"], means["last"] = bars["step"].min(), bars["step"].max()
    means["num_steps"] = bars["step"].nunique()
    means[["num_calls", "num_untimed"]] = bars[["num_calls", "num_untimed"]].sum()
    known = parts[table["exposed_ns"] >= 0]
    by_rank = known.groupby(["block", "rank"])["exposed"].mean().reset_index()
    worst = by_rank.sort_values(["exposed", "rank"], ascending=[False, True]).groupby("block")
    share = worst["exposed"].first() / worst["exposed"].sum()
    first = worst.first()[stands_out(share, known["rank"].nunique())]
    means["worst_rank"] = first["rank"].reindex(means.index, fill_value=-1)
    means["worst_exposed"] = first["exposed"].reindex(means.index)
    means["is_warm_up"] = _is_warm_up(table["step"], duration, block)
    return means.reset_index(drop=True)


def _is_warm_up(step: pd.Series, duration: pd.Series, block: int) -> list[bool]:
    """Return for each bar whether it is a first step that takes much longer than the others."""
    lasts = duration.groupby(step).mean().sort_index()
    num_bars = -(-len(lasts) // block)
    if block > 1 or lasts.empty:
        return [False] * num_bars
    first = lasts.index[0]
    is_first = 0 <= first <= _LATEST_WARM_UP and first in long_steps(lasts)
    return [is_first, *[False] * (num_bars - 1)]


def _marker(part: str, theme: Theme) -> dict[str, Any]:
    hatching = "." if part == UNKNOWN else ""
    return fill(theme, theme.use(part), hatching, lines=theme.use("transfer"), solidity=0.3)


def _layout(theme: Theme, drawn: pd.DataFrame) -> go.Layout:
    made = layout(theme, height=_HEIGHT, margin={"l": 64, "r": 12, "t": 34, "b": 48})
    is_outside = drawn["last"].max() < 0
    ticks = {"tickvals": [-1], "ticktext": ["outside of steps"]}
    several = int(drawn["num_steps"].max())
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
    width = _LONG_NOTE_WIDTH if drawn["is_warm_up"].any() else _NOTE_WIDTH
    for bar in drawn[is_outlier].nlargest(MOST_NOTES, "lasts").itertuples(index=False):
        middle = (bar.first + bar.last) / 2
        place = (middle - low) / (high - low)
        # Adjacent notes would overlap, and notes at an edge would cover the axis labels.
        rows_down = sum(abs(place - other) < width for other in noted)
        noted.append(place)
        figure.add_annotation(
            text=f"↑ {'warm-up ' if bar.is_warm_up else ''}{text_of_duration(bar.lasts)}",
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


def _hover_text(bar: dict[Any, Any]) -> str:
    num_timed = bar["num_calls"] - bar["num_untimed"]

    def part(name: str) -> str:
        words, lasts = PARTS[name][0], bar[name]
        if name == UNKNOWN and not lasts:
            return ""
        if name in ("exposed", "overlapped") and bar["num_calls"] and not num_timed:
            return f"{words}: {UNKNOWN}"
        share = f" ({lasts / bar['lasts']:.1%})" if bar["lasts"] else ""
        return f"{words} {text_of_duration(lasts)}{share}"

    first, last, worst = bar["first"], bar["last"], bar["worst_rank"]
    which = f"step {first}" if first == last else f"steps {first} to {last}"
    which += ", warm-up" if bar["is_warm_up"] else ""
    most = f"most exposed: rank {worst}, {text_of_duration(bar['worst_exposed'])}"
    note = known_note(num_timed, bar["num_calls"])
    return lines(
        (
            bold(which if first >= 0 else "outside of steps"),
            f"{text_of_duration(bar['lasts'])}, mean over ranks",
            *(part(name) for name in PARTS),
            most if worst >= 0 else "",
            f"exposed time {note}" if note else "",
        )
    )
