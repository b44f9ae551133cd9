"""When each rank communicated: rank x lane over time, coloured by kind.

Behind a rank's calls lies the phase that it was in; a call's hatched part is the wait for the last
peer. All calls of a kind are one trace, so a kind can be switched off, and the number of traces
does not grow with the number of calls. Above `max_marks` neighbours are drawn as one mark, and
phases, too short to be seen then, not at all; a window shows them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from commtrace.analyze.by_phase import PHASES
from commtrace.analyze.calls import calls
from commtrace.analyze.frame import Frames
from commtrace.figures.label import bold, lines, plain, wrapped
from commtrace.figures.spans import call_spans, joined, phase_spans
from commtrace.figures.theme import LIGHT, Theme, layout, theme_of
from commtrace.units import text_of_bytes, text_of_duration

MAX_MARKS = 8000

Call = Mapping[str, Any]

_STEP_ROW = -0.9
_ROW_PIXELS = 46
_MILLISECOND = 1_000_000


def timeline(
    frames: Frames,
    *,
    window_ns: tuple[int, int] | None = None,
    max_marks: int = MAX_MARKS,
    theme: Theme | str = LIGHT,
) -> go.Figure:
    """The timeline of a run, or of a window of it, in milliseconds since its first rank began.

    `window_ns` is (first, last) since then. A bar's `customdata` is the call's row in table `comm`,
    or -1 where it stands for several calls; a trace's `meta` names its part, and its kind.
    """
    theme = theme_of(theme)
    start = frames.start_ns
    window = None if window_ns is None else (window_ns[0] + start, window_ns[1] + start)
    spans = call_spans(frames, window)
    marks = joined(spans, max_marks)
    ranks = sorted(set(frames.ranks["rank"]) | set(frames.comm["rank"]))
    rows = {rank: place for place, rank in enumerate(ranks)}
    figure = go.Figure(layout=_layout(frames, ranks, theme))
    phases = phase_spans(frames, window)
    if len(phases) > max_marks:
        phases = phases.head(0)
    for trace in (
        *_phase_bars(phases, rows, start, theme),
        *_step_bars(frames, start, theme),
        *_call_bars(frames, marks, rows, start, theme),
    ):
        figure.add_trace(trace)
    if window_ns is not None:
        figure.update_xaxes(range=[edge / _MILLISECOND for edge in window_ns])
    return figure


def _layout(frames: Frames, ranks: Sequence[int], theme: Theme) -> go.Layout:
    made = layout(
        theme,
        height=max(82 + _ROW_PIXELS * len(ranks), 178),
        barmode="overlay",
        bargap=0,
        hovermode="closest",
        dragmode="zoom",
        showlegend=False,
        margin={"l": 64, "r": 12, "t": 26, "b": 36},
    )
    made.update(
        yaxis={
            "range": [len(ranks) - 0.5, _STEP_ROW - 0.3 if len(frames.steps) else -0.5],
            "tickmode": "array",
            "tickvals": list(range(len(ranks))),
            "ticktext": [f"rank {rank}" for rank in ranks],
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
    """Horizontal bars from `start_ns` to `end_ns` of each row."""
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
    spans: pd.DataFrame, rows: dict[int, int], start_ns: int, theme: Theme
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
                y=of_phase["rank"].map(rows).tolist(),
                height=0.86,
                hovertext=[
                    lines((bold(phase), f"rank {rank}", text_of_duration(duration)))
                    for rank, duration in zip(of_phase["rank"], lasted, strict=True)
                ],
                marker={"color": theme.phase(phase), "line": {"width": 0}},
                meta={"part": "phase"},
            )
        )
    return bars


def _step_bars(frames: Frames, start_ns: int, theme: Theme) -> list[go.Bar]:
    """The steps of the first rank that marked any, above the ranks."""
    steps = frames.steps.sort_values(["rank", "step"])
    if steps.empty:
        return []
    steps = steps[steps["rank"] == steps["rank"].iloc[0]]
    lasted = steps["end_ns"] - steps["start_ns"]
    return [
        _bars(
            "steps",
            steps,
            start_ns=start_ns,
            y=[_STEP_ROW] * len(steps),
            height=0.36,
            text=[f"step {step}" for step in steps["step"]],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            textfont={"size": 10, "color": theme.muted},
            constraintext="none",
            hovertext=[
                lines((bold(f"step {step}"), text_of_duration(duration)))
                for step, duration in zip(steps["step"], lasted, strict=True)
            ],
            marker={"color": theme.modules[0], "line": {"width": 1, "color": theme.surface}},
            meta={"part": "step"},
        )
    ]


def _call_bars(
    frames: Frames, marks: pd.DataFrame, rows: dict[int, int], start_ns: int, theme: Theme
) -> list[go.Bar]:
    """Two traces per kind: the transfers, and hatched, the waits that came before them."""
    num_lanes = marks.groupby("rank")["lane"].transform("max") + 1
    height = 0.58 / num_lanes
    shift = (marks["lane"] - (num_lanes - 1) / 2) * height
    marks = marks.assign(
        y=marks["rank"].map(rows) + shift, height=height * 0.94, text=_texts(frames, marks)
    )
    bars = []
    for kind in marks["kind"].drop_duplicates().sort_values():
        colour = theme.kind(kind)
        of_kind = marks[marks["kind"] == kind]
        waits = of_kind[of_kind["ready_ns"] > of_kind["start_ns"]].copy()
        transfers = of_kind.copy()
        waits["end_ns"] = waits["ready_ns"]
        transfers["start_ns"] = transfers["ready_ns"]
        hatched = {
            "shape": "/",
            "size": 5,
            "solidity": 0.42,
            "fgcolor": colour,
            "bgcolor": theme.surface,
        }
        looks = (("wait", waits, {"pattern": hatched}), ("transfer", transfers, {}))
        for name, part, look in looks:
            if part.empty:
                continue
            bars.append(
                _bars(
                    plain(kind),
                    part,
                    start_ns=start_ns,
                    y=part["y"].tolist(),
                    height=part["height"].tolist(),
                    hovertext=part["text"].tolist(),
                    customdata=part["row"].tolist(),
                    marker={"color": colour, "line": {"width": 0}, **look},
                    meta={"part": name, "kind": kind},
                )
            )
    return bars


def _texts(frames: Frames, marks: pd.DataFrame) -> list[str]:
    single = marks[marks["row"] >= 0]["row"]
    of_call = dict(
        zip(
            single,
            map(call_text, calls(frames).iloc[single].to_dict("records")),
            strict=True,
        )
    )
    return [of_call.get(mark.row) or _joined_text(mark) for mark in marks.itertuples(index=False)]


def _joined_text(mark: Any) -> str:
    lasted = text_of_duration(mark.end_ns - mark.start_ns)
    return lines(
        (
            bold(f"{mark.num_calls:,} × {plain(mark.kind)}"),
            f"rank {mark.rank}, within {lasted}",
            "zoom in to see single calls",
        )
    )


def call_text(call: Call) -> str:
    """What the timeline says of one call, a row of the analysis `calls`: lines of safe HTML."""
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


def _where(call: Call) -> str:
    named = f" ({plain(call['module_class'])})" if call["module_class"] else ""
    module = f"{plain(call['module'])}{named}" if call["module"] else "outside of modules"
    step = f"step {call['step']}" if call["step"] >= 0 else "outside of steps"
    return ", ".join(part for part in (module, plain(call["phase"]), step) if part)


def _size(call: Call) -> str:
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


def _times(call: Call) -> str:
    if call["blocked_ns"] < 0:
        return ""
    blocked = f"blocked {text_of_duration(call['blocked_ns'])}"
    if call["wait_ns"] < 0:
        return blocked
    wait, transfer = text_of_duration(call["wait_ns"]), text_of_duration(call["transfer_ns"])
    if call["last_rank"] == call["rank"]:
        return f"{blocked}; came last"
    return f"{blocked}: waited {wait} (last came rank {call['last_rank']}), transfer {transfer}"


def _source(call: Call) -> str:
    if not call["source_file"]:
        return ""
    line = f":{call['source_line']}" if call["source_line"] >= 0 else ""
    within = f" in {call['source_function']}" if call["source_function"] else ""
    return plain(f"{call['source_file']}{line}{within}")
