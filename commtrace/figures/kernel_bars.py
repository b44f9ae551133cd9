"""Bars of kernels on the lanes of the timeline, coloured by the sort of work.

A bar of several kernels is as opaque as its lane is busy.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from commtrace.figures.kernel_lanes import DrawnLanes
from commtrace.figures.label import bold, lines, plain
from commtrace.figures.theme import Theme
from commtrace.figures.timeline_rows import TimelineRows
from commtrace.units import text_of_duration

LEAST_OPACITY = 0.15
MOST_OF_A_LANE = 2000
"""Bars of a lane, which are then less than a pixel wide."""
WORDS = {"compute": "computing", "copy": "copying", "other": "other work"}
"""Sorts of work, as the legend names them."""

_BAND = 0.82
_MILLISECOND = 1_000_000


def kernel_bars(
    lanes: DrawnLanes,
    rows: dict[int, int],
    geometry: TimelineRows,
    theme: Theme,
    *,
    start_ns: int,
) -> list[go.Bar]:
    """Return a trace per sort of work; `rows` are the rows of the ranks."""
    drawn = lanes.bars
    if not len(drawn):
        return []
    of_lane = lanes.lanes.loc[drawn["lane"]].reset_index(drop=True)
    drawn = drawn.assign(
        y=of_lane["rank"].map(rows) + geometry.lane(0) + of_lane["place"] * geometry.lane_height,
        rank=of_lane["rank"],
        title=of_lane["title"],
        share=(drawn["busy_ns"] / (drawn["end_ns"] - drawn["start_ns"]).clip(lower=1)).clip(
            upper=1
        ),
    )
    by_sort: Any = drawn.groupby(["is_sent", "sort"], sort=True)
    return [
        go.Bar(
            name=plain(sort) if is_sent else WORDS[sort],
            orientation="h",
            base=((group["start_ns"] - start_ns) / _MILLISECOND).tolist(),
            x=((group["end_ns"] - group["start_ns"]) / _MILLISECOND).tolist(),
            y=group["y"].tolist(),
            width=geometry.lane_height * _BAND,
            hoverinfo="text",
            hovertext=[kernel_text(mark) for mark in group.to_dict("records")],
            marker={
                "color": theme.kind(sort) if is_sent else theme.device[sort],
                "opacity": _opacity(group),
                "line": {"width": 0},
            },
            meta={
                "part": "kernel",
                "kind": sort if is_sent else "",
                "is_merged": bool(group["is_merged"].any()),
            },
        )
        for (is_sent, sort), group in by_sort
    ]


def _opacity(group: pd.DataFrame) -> Any:
    if not group["is_merged"].any():
        return 1
    return group["share"].where(group["is_merged"], 1).clip(lower=LEAST_OPACITY).tolist()


def kernel_text(mark: dict[str, Any]) -> str:
    """Describe a bar, a row of `lane_marks` with its lane's `rank` and `title`."""
    lasts = mark["end_ns"] - mark["start_ns"]
    where = f"rank {mark['rank']}, {plain(mark['title'])}"
    sort = plain(mark["sort"]) if mark["is_sent"] else WORDS[mark["sort"]]
    if not mark["is_merged"]:
        launch = mark["launch_ns"]
        delay = text_of_duration(max(mark["start_ns"] - launch, 0)) if launch >= 0 else ""
        launched = f"launched {delay} before" if delay else ""
        return lines(
            (bold(plain(mark["name"])), where, f"{sort}, {text_of_duration(lasts)}", launched)
        )
    begin = " begins" if mark["num_kernels"] == 1 else "s begin"
    busy = f"{mark['share']:.1%} of {text_of_duration(lasts)} is busy"
    return lines(
        (
            bold(f"{mark['num_kernels']:,} kernel{begin} here"),
            where,
            busy,
            f"most of it {sort}: {plain(mark['name'])}",
        )
    )
