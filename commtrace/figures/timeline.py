"""Timeline of communication: ranks and lanes over time, coloured by kind.

The background of a rank's row shows its phase; the hatched part of a call is its wait for the last
peer. Below the calls are the streams of the rank's devices with their kernels. All calls of a kind
form a single trace, so a kind can be switched off. Above `max_marks` marks, shares of time by kind
are drawn instead of calls, and phases are left out; a time window shows single calls again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from commtrace.analyze.excerpts.excerpt import excerpt
from commtrace.analyze.measures.census import census
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.program_folder import program_folder, relative_to
from commtrace.analyze.traffic.calls import calls
from commtrace.errors import UsageError
from commtrace.figures.kernel_bars import MOST_OF_A_LANE, kernel_bars
from commtrace.figures.kernel_lanes import DrawnLanes, drawn_lanes
from commtrace.figures.label import bold, lines, plain, wrapped
from commtrace.figures.path_line import path_line
from commtrace.figures.spans import TRANSFER, WAIT, call_marks, few_phase_spans
from commtrace.figures.stacked_bars import fill
from commtrace.figures.theme import (
    LEGEND,
    LEGEND_PIXELS,
    LIGHT,
    Theme,
    empty,
    layout,
    legend_entry,
    theme_of,
    titled,
)
from commtrace.figures.timeline_rows import LABELLED_PIXELS, TimelineRows
from commtrace.schema import PHASES
from commtrace.units import text_of_bytes, text_of_duration

MAX_MARKS = 16_000

CallFields = Mapping[str, Any]

_BAND = 0.58
"""Fraction of a rank's row that its calls take; its phase fills the row."""
_MILLISECOND = 1_000_000


def timeline(
    frames: Frames,
    *,
    window_ns: tuple[int, int] | None = None,
    ranks: Sequence[int] | None = None,
    max_marks: int = MAX_MARKS,
    critical_path: bool = False,
    theme: Theme | str = LIGHT,
    title: str = "",
    because: str = "",
) -> go.Figure:
    """Draw the timeline of a run, or of a window of it, in ms since the start of the run.

    The `customdata` of a bar of calls is the call's row in table `comm`, or -1 if it stands for
    several calls. The `meta` of a trace has its part and its kind. The layout's `meta` says whether
    calls are drawn singly.

    Args:
        frames: The run.
        window_ns: First and last instant, in ns since the start of the run; all by default.
        ranks: Ranks to draw; all by default.
        max_marks: Number of marks above which shares of time are drawn.
        critical_path: Draw the critical path of the run over the ranks.
        theme: Colours, by name or as a theme.
        title: Heading; none by default.
        because: Reason shown if there is nothing to draw.

    Raises:
        UsageError: The run has no such rank.
    """
    theme = theme_of(theme)
    start = frames.start_ns
    window = None if window_ns is None else (window_ns[0] + start, window_ns[1] + start)
    chosen = ranks_of(frames, ranks)
    drawn = call_marks(frames, chosen, window, max_marks)
    lanes = drawn_lanes(frames, chosen, max_marks, window_ns=window, most_of_a_lane=MOST_OF_A_LANE)
    geometry = TimelineRows.of(len(chosen), lanes.most_of_a_rank)
    rows = {rank: place for place, rank in enumerate(chosen)}
    if drawn.table.empty and lanes.bars.empty:
        figure = empty(
            theme,
            title=title,
            what="No communication with a known time is in this trace"
            if window_ns is None
            else "No communication is in this part of the trace",
            because=because,
        )
        return figure.update_layout(meta={"single": drawn.are_single})
    figure = go.Figure(layout=titled(timeline_layout(frames, chosen, theme, lanes), title))
    figure.update_layout(meta={"single": drawn.are_single})
    _, phases = few_phase_spans(frames, chosen, max_marks, window)
    for trace in (
        *_phase_bars(phases, rows, geometry, start, theme),
        *_step_bars(frames, geometry, start, theme),
        *_call_bars(frames, drawn.table, rows, geometry, start, theme),
        *kernel_bars(lanes, rows, geometry, theme, start_ns=start),
        *(path_line(frames, rows, geometry, theme) if critical_path else ()),
    ):
        figure.add_trace(trace)
    if title:
        _add_legend(figure, theme)
    if window_ns is not None:
        figure.update_xaxes(range=[edge / _MILLISECOND for edge in window_ns])
    return figure


def _add_legend(figure: Any, theme: Theme) -> None:
    """Add legend entries for waiting, for phases and for kinds; a kind's toggles its waits, too."""
    has_wait = False
    for trace in figure.data:
        part = trace.meta["part"]
        has_wait |= part == WAIT
        of_call = part in (TRANSFER, WAIT) or (part == "kernel" and trace.meta["kind"] != "")
        trace.showlegend = part in (TRANSFER, "phase", "path") or (part == "kernel" and not of_call)
        trace.legendgroup = trace.name if of_call else part + trace.name
    if has_wait:
        hatched = _marker(WAIT, theme.muted, theme)
        figure.add_trace(legend_entry("waiting for the last rank", hatched, orientation="h"))
    figure.update_layout(
        showlegend=True,
        legend=LEGEND | {"traceorder": "reversed"},
        height=figure.layout.height + LEGEND_PIXELS,
        margin={"t": figure.layout.margin.t + LEGEND_PIXELS},
    )


def ranks_of(frames: Frames, ranks: Sequence[int] | None = None) -> list[int]:
    """Return the ranks of a run in order, all or only the ranks that are asked for.

    Raises:
        UsageError: The run has no such rank.
    """
    known = sorted({*frames.ranks["rank"].tolist(), *census(frames).ranks})
    if ranks is None:
        return known
    missing = sorted(set(ranks) - set(known))
    if missing:
        raise UsageError(
            f"no rank {', '.join(map(str, missing))} in this trace",
            found=f"ranks {', '.join(map(str, known[:16]))}{', ...' * (len(known) > 16)}",
            attempt="one of them",
        )
    return sorted(set(ranks))


def timeline_layout(
    frames: Frames, ranks: Sequence[int], theme: Theme, lanes: DrawnLanes
) -> go.Layout:
    """Return the layout of a timeline: a row per rank, in the given order, and steps above."""
    geometry = TimelineRows.of(len(ranks), lanes.most_of_a_rank)
    labels = {place + geometry.middle: f"rank {rank}" for place, rank in enumerate(ranks)}
    if geometry.lane_pixels >= LABELLED_PIXELS:
        places = {rank: place for place, rank in enumerate(ranks)}
        for rank, place, text in lanes.lanes[["rank", "place", "title"]].values.tolist():
            labels[places[rank] + geometry.lane(place)] = plain(text)
    longest = max(map(len, labels.values()), default=0)
    made = layout(
        theme,
        height=max(82 + round(geometry.pixels * len(ranks)), 178),
        barmode="overlay",
        bargap=0,
        hovermode="closest",
        dragmode="zoom",
        uniformtext={"mode": "hide", "minsize": 9},
        showlegend=False,
        margin={"l": min(max(64, 12 + 7 * longest), 160), "r": 12, "t": 26, "b": 36},
    )
    made.update(
        yaxis={
            "range": [len(ranks) - 0.5, geometry.top if len(frames.steps) else -0.5],
            "tickmode": "array",
            "tickvals": list(labels),
            "ticktext": list(labels.values()),
            "showgrid": False,
            "fixedrange": True,
            "ticks": "",
        },
        xaxis={
            "ticksuffix": " ms",
            "tickformat": ",",
            "exponentformat": "none",
            "ticks": "outside",
        },
    )
    return made


def _bars(
    name: str,
    spans: pd.DataFrame,
    *,
    start_ns: int,
    y: Sequence[float],
    height: Any,
    **more: Any,
) -> go.Bar:
    """Return horizontal bars from `start_ns` to `end_ns` of each row."""
    return go.Bar(
        name=name,
        orientation="h",
        base=((spans["start_ns"] - start_ns) / _MILLISECOND).tolist(),
        x=((spans["end_ns"] - spans["start_ns"]) / _MILLISECOND).tolist(),
        y=list(y),
        width=height,
        hoverinfo="text",
        **more,
    )


def _phase_bars(
    spans: pd.DataFrame, rows: dict[int, int], geometry: TimelineRows, start_ns: int, theme: Theme
) -> list[go.Bar]:
    known = spans["phase"].where(spans["phase"].isin(PHASES), "other")
    bars = []
    for phase in PHASES:
        of_phase = spans[known == phase]
        if of_phase.empty:
            continue
        lasted = of_phase["end_ns"] - of_phase["start_ns"]
        bars.append(
            _bars(
                phase,
                of_phase,
                start_ns=start_ns,
                y=(of_phase["rank"].map(rows) + geometry.middle).tolist(),
                height=0.86 * geometry.calls,
                hovertext=[
                    lines((bold(phase), f"rank {rank}", text_of_duration(duration)))
                    for rank, duration in zip(of_phase["rank"], lasted, strict=True)
                ],
                marker={"color": theme.phase(phase), "line": {"width": 0}},
                meta={"part": "phase"},
            )
        )
    return bars


def _step_bars(frames: Frames, geometry: TimelineRows, start_ns: int, theme: Theme) -> list[go.Bar]:
    """Return the steps of the first rank that marked any, as bars above the ranks."""
    steps = frames.timed_steps.sort_values(["rank", "step"])
    if steps.empty:
        return []
    steps = steps[steps["rank"] == steps["rank"].iloc[0]]
    lasted = steps["end_ns"] - steps["start_ns"]
    return [
        _bars(
            "steps",
            steps,
            start_ns=start_ns,
            y=[geometry.steps] * len(steps),
            height=geometry.step_height,
            text=[f"step {step}" for step in steps["step"]],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            textfont={"size": 10, "color": theme.muted},
            hovertext=[
                lines((bold(f"step {step}"), text_of_duration(duration)))
                for step, duration in zip(steps["step"], lasted, strict=True)
            ],
            marker={"color": theme.modules[0], "line": {"width": 1, "color": theme.surface}},
            meta={"part": "step"},
        )
    ]


def _call_bars(
    frames: Frames,
    drawn: pd.DataFrame,
    rows: dict[int, int],
    geometry: TimelineRows,
    start_ns: int,
    theme: Theme,
) -> list[go.Bar]:
    """Return a trace per kind for transfers, and a hatched trace for the waits before them."""
    band = _BAND * geometry.calls
    middle = drawn["rank"].map(rows) + geometry.middle
    drawn = drawn.assign(
        y=middle + band * (drawn["top"] + drawn["height"] / 2 - 0.5),
        height=band * drawn["height"],
        text=_texts(frames, drawn),
    )
    by_part: Any = drawn.groupby(["kind", "part"], sort=True)
    return [
        _bars(
            plain(kind),
            group,
            start_ns=start_ns,
            y=group["y"].tolist(),
            height=group["height"].tolist(),
            hovertext=group["text"].tolist(),
            customdata=group["row"].tolist(),
            marker=_marker(part, theme.kind(kind), theme),
            meta={"part": part, "kind": kind},
        )
        for (kind, part), group in by_part
    ]


def _marker(part: str, colour: str, theme: Theme) -> dict[str, Any]:
    if part == WAIT:
        return fill(theme, colour, "/", size=5, solidity=0.42)
    # A line makes calls visible that are narrower than a pixel, or have no known end.
    return {**fill(theme, colour), "line": {"width": 1, "color": colour}}


def _texts(frames: Frames, drawn: pd.DataFrame) -> list[str]:
    # A call has up to two marks, which share a text.
    single = np.sort(drawn.loc[drawn["row"] >= 0, "row"].unique())
    shown = calls(excerpt(frames, pd.Index(single))) if len(single) else pd.DataFrame()
    rows: Any = shown.to_dict("records")
    folder = program_folder(frames)
    for row in rows:
        row["source_file"] = relative_to(folder, row["source_file"])
    stories = map(call_text, rows)
    of_call = dict(zip(single.tolist(), stories, strict=True))
    return [of_call.get(mark.row) or _share_text(mark) for mark in drawn.itertuples(index=False)]


def _share_text(mark: Any) -> str:
    lasts = mark.end_ns - mark.start_ns
    doing = "waiting in" if mark.part == WAIT else "transfer of"
    calls_begun = f"{mark.num_calls:,} calls" if mark.num_calls else ""
    return lines(
        (
            f"{bold(plain(mark.kind))} on rank {mark.rank}",
            f"{mark.busy_ns / lasts:.1%} of {text_of_duration(lasts)} is {doing} it",
            calls_begun,
        )
    )


def call_text(call: CallFields) -> str:
    """Describe a call, a row of the analysis `calls`, in lines of escaped HTML."""
    return lines(
        (
            f"{bold(plain(call['kind']))} on rank {call['rank']}, call {call['id']}",
            wrapped(call["reason"]),
            _where(call),
            f"for {plain(call['op'])}" if call["op"] else "",
            _size(call),
            _times(call),
            _source(call),
        )
    )


def _where(call: CallFields) -> str:
    named = f" ({plain(call['module_class'])})" if call["module_class"] else ""
    module = f"{plain(call['module'])}{named}" if call["module"] else "outside of modules"
    step = f"step {call['step']}" if call["step"] >= 0 else "outside of steps"
    return ", ".join(part for part in (module, plain(call["phase"]), step) if part)


def _size(call: CallFields) -> str:
    shapes = call["input_shapes"] or call["output_shapes"]
    what = plain(f"{call['dtype']} {shapes}".strip())
    parts = [
        f"payload {text_of_bytes(call['payload_bytes'])}" if call["payload_bytes"] >= 0 else "",
        f"sent {text_of_bytes(call['wire_bytes'])}" if call["wire_bytes"] >= 0 else "",
        what,
        f"group {plain(call['mesh_axis'] or call['group'])}" if call["group"] else "",
        f"{plain(call['reduce_op'])}",
    ]
    return ", ".join(part for part in parts if part)


def _times(call: CallFields) -> str:
    if call["blocked_ns"] < 0:
        return ""
    blocked = f"blocked {text_of_duration(call['blocked_ns'])}"
    if call["wait_ns"] < 0:
        return blocked
    wait, transfer = text_of_duration(call["wait_ns"]), text_of_duration(call["transfer_ns"])
    if call["last_rank"] == call["rank"]:
        return f"{blocked}; last to arrive"
    return (
        f"{blocked}: waited {wait} (last to arrive: rank {call['last_rank']}), transfer {transfer}"
    )


def _source(call: CallFields) -> str:
    if not call["source_file"]:
        return ""
    line = f":{call['source_line']}" if call["source_line"] >= 0 else ""
    within = f" in {call['source_function']}" if call["source_function"] else ""
    via = f", via {call['via']}" if call["via"] else ""
    return plain(f"{call['source_file']}{line}{within}{via}")
