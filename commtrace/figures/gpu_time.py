"""Time of each device: computing, exposed communication, copies, and idle time by reason, stacked.

A bar is a step of a device. If there are more than `MAX_BARS`, a bar is the mean of a device's
steps; above `MAX_DEVICES` devices, those that compute the smallest part of the time are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from commtrace.analyze.devices.gpu_time import ALL_STREAMS, CONCURRENT, PARTS
from commtrace.figures.label import bold, lines, plain
from commtrace.figures.stacked_bars import fill, row_layout
from commtrace.figures.theme import LIGHT, Theme, empty, theme_of, titled
from commtrace.units import text_of_duration

MAX_BARS, MAX_DEVICES = 48, 128

PATTERNS: dict[str, str] = {
    "exposed_wait": "/",
    "exposed_unknown": ".",
    "other": "+",
    "idle_host": "\\",
    "idle_kernel": "|",
    "idle_launch": "-",
    "idle_unknown": "x",
}
"""Hatching of the parts that are not solid, so that they are distinguishable without colours."""

WORDS: dict[str, str] = {
    "compute": "computing",
    "exposed_transfer": "exposed: transferring",
    "exposed_wait": "exposed: waiting for a peer",
    "exposed_unknown": "exposed: not known which",
    "copy": "copying",
    "other": "other work",
    "idle_host": "idle: waiting for the host",
    "idle_kernel": "idle: waiting for a kernel",
    "idle_launch": "idle: launch gaps",
    "idle_unknown": "idle: not known why",
}
"""Parts of a bar in their order, as the legend names them."""

_LEGEND_PIXELS = 46
"""Height of a legend of two lines."""


def gpu_time(
    table: pd.DataFrame, *, theme: Theme | str = LIGHT, title: str = "", because: str = ""
) -> go.Figure:
    """Draw the bars of the analysis `gpu_time`: the time of each device as a whole.

    Time outside of steps is drawn only if there are no steps. `because` is the reason shown if
    there is nothing to draw.
    """
    theme = theme_of(theme)
    bars = device_bars(table)
    if bars.empty:
        return empty(theme, title=title, what="No kernel is in this trace", because=because)
    num_devices = len(table[["rank", "device"]].drop_duplicates())
    figure = go.Figure(layout=titled(_layout(theme, bars, num_devices), title))
    texts = [_hover_text(bar) for bar in bars.to_dict("records")]
    for part, words in WORDS.items():
        if not bars[part].any():
            continue
        figure.add_trace(
            go.Bar(
                name=words,
                orientation="h",
                x=(bars[part] / 1e9).tolist(),
                y=list(range(len(bars))),
                marker=fill(theme, theme.device[part], PATTERNS.get(part, "")),
                hovertext=texts,
                hoverinfo="text",
                meta={"part": part},
            )
        )
    return figure


def device_bars(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row per bar: `rank device step num_steps label lasts`, and each part in ns.

    `step` is -1 in a mean of several steps, and outside of steps. The parts are listed in `PARTS`.
    """
    whole = table[table["stream"] == ALL_STREAMS]
    inside = whole[whole["step"] >= 0]
    drawn = (inside if len(inside) else whole).rename(
        columns={f"{name}_ns": name for name in PARTS}
    )
    drawn = drawn.rename(columns={"duration_ns": "lasts"}).astype(
        dict.fromkeys(("lasts", *PARTS), "float64")
    )
    keys = ["rank", "device"]
    drawn = drawn.assign(num_steps=1)[[*keys, "step", "num_steps", "lasts", *PARTS]]
    several = drawn.groupby(keys)["step"].transform("size").gt(1).any()
    if several and len(drawn) > MAX_BARS:
        by: Any = drawn.groupby(keys)
        means = by[["lasts", *PARTS]].mean().assign(num_steps=by["step"].size(), step=-1)
        drawn, several = means.reset_index(), False
    if len(drawn) > MAX_DEVICES:
        least = (drawn["compute"] / drawn["lasts"]).nsmallest(MAX_DEVICES).index
        drawn = drawn[drawn.index.isin(least)]
    is_one = not drawn.groupby("rank")["device"].nunique().gt(1).any()
    labels = [
        ", ".join(
            [
                f"rank {row.rank}" + ("" if is_one else f" {plain(row.device)}"),
                *([f"step {row.step}"] if several else []),
            ]
        )
        for row in drawn.itertuples(index=False)
    ]
    return drawn.assign(label=labels).sort_values([*keys, "step"]).reset_index(drop=True)


def _layout(theme: Theme, bars: pd.DataFrame, num_devices: int) -> go.Layout:
    words = "time"
    if bars["num_steps"].max() > 1:
        words = f"time per step, mean of {bars['num_steps'].max():,} steps"
    shown = len(bars[["rank", "device"]].drop_duplicates())
    if shown < num_devices:
        words += f"; {shown} of {num_devices} devices, those that compute the smallest part"
    labels = bars["label"].tolist()
    return row_layout(
        theme,
        labels,
        words,
        left=24 + 7 * min(max(map(len, labels)), 24),
        top=8 + _LEGEND_PIXELS,
        around=90 + _LEGEND_PIXELS,
        least=200,
    )


def _hover_text(bar: Mapping[Any, Any]) -> str:
    def part(name: str, words: str) -> str:
        return f"{words} {text_of_duration(bar[name])} ({bar[name] / bar['lasts']:.1%})"

    mean = f", mean of {bar['num_steps']:,} steps" if bar["num_steps"] > 1 else ""
    return lines(
        (
            bold(bar["label"] + (f" ({plain(bar['device'])})" if bar["device"] else "")),
            f"{text_of_duration(bar['lasts'])}{mean}",
            *(part(name, words) for name, words in WORDS.items() if bar[name]),
            part(CONCURRENT, "overlapped communication, while computing:")
            if bar[CONCURRENT]
            else "",
        )
    )
