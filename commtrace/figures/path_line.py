"""The critical path on a timeline: bars over the rows of ranks, and lines where it hops.

Work of hosts is below the calls of its rank, and work of devices below its lanes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from commtrace.analyze.replay.critical_path import critical_path
from commtrace.analyze.run.frame import Frames
from commtrace.figures.label import bold, lines, plain
from commtrace.figures.theme import Theme
from commtrace.figures.timeline_rows import TimelineRows
from commtrace.units import text_of_duration

_HEIGHT, _OFFSET = 0.12, 0.38
"""Height, and offset from the middle, as parts of a rank's calls."""
_LANE_HEIGHT, _LANE_OFFSET = 0.3, 0.25
"""The same as parts of a lane, and from the end of the rank's row."""
_MILLISECOND = 1_000_000


def path_line(
    frames: Frames, rows: Mapping[int, int], geometry: TimelineRows, theme: Theme
) -> Iterator[go.Bar | go.Scatter]:
    """Yield the lines and the bars of the critical path on the ranks of a figure.

    Args:
        frames: The run.
        rows: Row of the figure by rank.
        geometry: Geometry of the rows.
        theme: Colours.
    """
    table = critical_path(frames)
    table = table[table["rank"].isin([*rows])]
    if table.empty:
        return
    start = (table["at_ns"] - frames.start_ns).to_numpy() / _MILLISECOND
    lasts = table["duration_ns"].to_numpy() / _MILLISECOND
    row = table["rank"].map(rows).to_numpy()
    on_lane = (table["device"] != "").to_numpy() & (geometry.num_lanes > 0)
    lane = geometry.lane_height
    of_host = row + geometry.middle + _OFFSET * geometry.calls
    y = np.where(on_lane, row + 0.5 - _LANE_OFFSET * lane, of_host)
    height = np.where(on_lane, _LANE_HEIGHT * lane, _HEIGHT * geometry.calls)
    place = table.index.to_numpy()
    hop = np.flatnonzero((place[1:] == place[:-1] + 1) & (y[1:] != y[:-1]))
    gap = np.full(len(hop), np.nan)
    yield go.Scatter(
        name="critical path, from rank to rank",
        x=np.stack([(start + lasts)[hop], start[hop + 1], gap], axis=1).ravel().tolist(),
        y=np.stack([y[hop], y[hop + 1], gap], axis=1).ravel().tolist(),
        mode="lines",
        line={"color": theme.ink, "width": 2},
        hoverinfo="skip",
        showlegend=False,
        meta={"part": "hop", "kind": ""},
    )
    yield go.Bar(
        name="critical path",
        orientation="h",
        base=start.tolist(),
        x=lasts.tolist(),
        y=y.tolist(),
        width=height.tolist(),
        hoverinfo="text",
        hovertext=[_text(each) for each in table.to_dict("records")],
        marker={"color": theme.ink, "line": {"width": 1, "color": theme.ink}},
        meta={"part": "path", "kind": ""},
    )


def _text(stretch: Mapping[Any, Any]) -> str:
    of_call = "before" if stretch["work"] == "host work" else "of"
    call = f" {of_call} {stretch['kind']} (call {stretch['id']})" if stretch["kind"] else ""
    num = stretch["num_stretches"]
    merged = f"{num:,} stretches, the longest " if num > 1 else ""
    came = stretch["from_rank"]
    return lines(
        (
            bold(f"rank {stretch['rank']}"),
            plain(f"{merged}{stretch['work']}{call}"),
            f"{text_of_duration(stretch['duration_ns'])}, {stretch['share']:.1%} of the path",
            plain(stretch["op"]),
            plain(stretch["module"]),
            f"the path comes from rank {came}" if came >= 0 else "",
        )
    )
