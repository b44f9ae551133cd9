"""Schedule of a pipeline as it ran, above the ideal one: a lane for each rank, a block per action.

The round of median length is drawn. Blocks have the number of their micro-batch, and are hatched
for a rank's second and later stages.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

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
from commtrace.units import text_of_duration

MOST_RANKS = 32
_MOST_LANE_PIXELS, _LEAST_LANE_PIXELS, _LANES_PIXELS = 26, 13, 560
_AROUND_PIXELS, _HEADING_PIXELS = 82, 30
_MANY_BLOCKS = 250
_ROUND = ["pipeline", "step", "round"]
_RAN, _IDEAL = ("begin_ns", "duration_ns"), ("ideal_begin_ns", "ideal_duration_ns")


def pipeline_schedule(
    table: pd.DataFrame,
    *,
    step: int | None = None,
    pipeline: int = 0,
    theme: Theme | str = LIGHT,
    title: str = "",
    because: str = "",
) -> go.Figure:
    """Draw a round of the analysis `pipeline_schedule`.

    Args:
        table: The table of the analysis.
        step: Step of the round; by default, the round of median length is drawn.
        pipeline: Number of the pipeline.
        theme: Colours, by name or as a theme.
        title: Heading; none by default.
        because: Reason shown if there is nothing to draw.

    Raises:
        UsageError: There is no such round.
    """
    theme = theme_of(theme)
    if table.empty:
        return empty(theme, title=title, what="No pipeline is in this trace", because=because)
    rows = _drawn(table, step, pipeline)
    ranks = sorted(set(rows["rank"]))[:MOST_RANKS]
    more = f" (the first {MOST_RANKS} of {rows['rank'].nunique()} ranks)" * (
        rows["rank"].nunique() > MOST_RANKS
    )
    rows = rows[rows["rank"].isin(ranks)]
    first_stage = rows.groupby("rank")["stage"].min()
    is_hatched = rows["stage"] > rows["rank"].map(first_stage)
    lane = rows["rank"].map({rank: place for place, rank in enumerate(ranks)})
    below = len(ranks) + _HEADING_PIXELS / _lane_pixels(len(ranks))
    figure = go.Figure(layout=titled(_layout(theme, rows, ranks, more), title))
    for action, colour in theme.actions.items():
        own = rows["action"] == action
        if own.any():
            for names, shift, is_first in ((_RAN, 0.0, True), (_IDEAL, below, False)):
                figure.add_trace(
                    _blocks(rows[own], names, lane[own] + shift, is_hatched[own], colour, theme)
                )
                figure.data[-1].update(
                    name=action.replace("_", " "),
                    legendgroup=action,
                    showlegend=is_first,
                    meta={"action": action, "is_ideal": not is_first},
                )
    return figure


def _drawn(table: pd.DataFrame, step: int | None, pipeline: int) -> pd.DataFrame:
    """Return the rows of the round that is drawn."""
    chosen = table[table["pipeline"] == pipeline]
    if step is not None:
        chosen = chosen[chosen["step"] == step]
    if chosen.empty:
        steps = sorted(set(table.loc[table["pipeline"] == pipeline, "step"]))
        raise UsageError(
            f"no round of pipeline {pipeline}" + ("" if step is None else f" in step {step}"),
            found=f"pipelines {sorted(set(table['pipeline']))}, steps {steps[:8]}",
            why="only rounds that were recorded can be drawn",
            attempt="one of these",
        )
    ends = (chosen["begin_ns"] + chosen["duration_ns"]).groupby([chosen[name] for name in _ROUND])
    lengths = ends.max().sort_values(kind="stable")
    key: Any = lengths.index[len(lengths) // 2]
    is_in = pd.Series(True, index=chosen.index)
    for name, value in zip(_ROUND, key, strict=True):
        is_in &= chosen[name] == value
    return chosen[is_in]


def _blocks(
    rows: pd.DataFrame,
    names: tuple[str, str],
    lanes: pd.Series,
    is_hatched: pd.Series,
    colour: str,
    theme: Theme,
) -> go.Bar:
    begin, duration = names
    return go.Bar(
        orientation="h",
        base=(rows[begin] / 1e9).tolist(),
        x=(rows[duration] / 1e9).tolist(),
        y=lanes.tolist(),
        width=0.86,
        marker={
            "color": colour,
            "line": {"width": 0 if len(rows) > _MANY_BLOCKS else 0.5, "color": theme.surface},
            "pattern": {
                "shape": ["/" if each else "" for each in is_hatched],
                "fgcolor": theme.surface,
                "bgcolor": colour,
                "fillmode": "replace",
                "size": 7,
                "solidity": 0.16,
            },
        },
        text=[str(each) for each in rows["micro_batch"]],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        insidetextfont={"color": readable_on(colour)},
        hovertext=[_hover_text(row) for row in rows.to_dict("records")],
        hoverinfo="text",
    )


def _hover_text(row: dict[Any, Any]) -> str:
    name = f"{row['action'].replace('_', ' ')} of micro-batch {row['micro_batch']}"
    return lines(
        (
            bold(plain(name)),
            f"stage {row['stage']} on rank {row['rank']}, step {row['step']}",
            f"took {text_of_duration(row['duration_ns'])}, "
            f"ideally {text_of_duration(row['ideal_duration_ns'])}",
            f"began after {text_of_duration(row['begin_ns'])}, "
            f"ideally {text_of_duration(row['ideal_begin_ns'])}",
        )
    )


def _lane_pixels(num_ranks: int) -> float:
    return min(max(_LANES_PIXELS / (2 * num_ranks), _LEAST_LANE_PIXELS), _MOST_LANE_PIXELS)


def _layout(theme: Theme, rows: pd.DataFrame, ranks: list[int], more: str) -> go.Layout:
    num = len(ranks)
    lane = _lane_pixels(num)
    heading = _HEADING_PIXELS / lane
    height = round(_AROUND_PIXELS + (2 * num + 2 * heading) * lane)
    made = layout(theme, height=height, margin={"l": 74, "r": 12, "t": 34, "b": 48})
    every = -(-num // 16)
    shown = list(range(0, num, every))
    below = num + heading
    made.update(
        barmode="overlay",
        showlegend=True,
        legend=LEGEND,
        uniformtext={"minsize": 8, "mode": "hide"},
        xaxis={
            "title": {"text": f"time since the begin of the round{more}"},
            "tickformat": "~s",
            "ticksuffix": "s",
            "rangemode": "tozero",
        },
        yaxis={
            "range": [below + num - 0.5, -0.5 - heading],
            "tickmode": "array",
            "tickvals": [*shown, *(below + place for place in shown)],
            "ticktext": [f"rank {ranks[place]}" for place in shown] * 2,
            "showgrid": False,
            "ticks": "",
        },
        annotations=[
            _heading(theme, f"as it ran, step {rows['step'].iloc[0]}", rows, _RAN, -0.5),
            _heading(theme, "ideal: equal stages, nothing late", rows, _IDEAL, below - 0.5),
        ],
    )
    return made


def _heading(
    theme: Theme, text: str, rows: pd.DataFrame, names: tuple[str, str], y: float
) -> dict[str, Any]:
    """Return the heading of a schedule: its length, and the part of it in which ranks are idle."""
    length = (rows[names[0]] + rows[names[1]]).max()
    busy = rows[names[1]].sum() / (rows["rank"].nunique() * length) if length else 1.0
    return {
        "text": f"{text}: {text_of_duration(float(length))}, {1 - busy:.0%} idle",
        "showarrow": False,
        "x": 0,
        "xref": "paper",
        "xanchor": "left",
        "y": y,
        "yanchor": "bottom",
        "font": {"size": 11, "color": theme.muted},
    }
