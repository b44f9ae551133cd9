"""Data of the page's timeline besides the calls: rows, phases, steps, kernels, and layout."""

from __future__ import annotations

from typing import Any

import pandas as pd

from commtrace.analyze import Frames
from commtrace.figures.kernel_lanes import drawn_lanes
from commtrace.figures.spans import few_phase_spans, phase_spans
from commtrace.figures.theme import LIGHT
from commtrace.figures.timeline import timeline_layout
from commtrace.figures.timeline_rows import TimelineRows
from commtrace.report.detail import Detail, opening_step
from commtrace.report.kernel_store import MAX_BARS, kernel_store

MAX_PHASES = 60_000
_GEOMETRY = ("pixels", "calls", "middle", "steps", "step_height")


def timeline_data(frames: Frames, detail: Detail, origin_ns: int = 0) -> dict[str, Any]:
    """Return the data, with times in ns since the start of `frames`.

    That start is `origin_ns` after the start of the run. If there are more than `MAX_PHASES`
    phases, those beside the single calls are left; if these are too many, too, all are left out.
    """
    start, ranks = frames.start_ns, detail.ranks
    num_phases, phases = few_phase_spans(frames, ranks, MAX_PHASES)
    if num_phases > MAX_PHASES and detail.stretches is not None:
        phases = phase_spans(detail.frames)
        phases = phases if len(phases) <= MAX_PHASES else phases.head(0)
    codes, strings = pd.factorize(phases["phase"])
    drawn = drawn_lanes(frames, ranks, MAX_BARS)
    rows = TimelineRows.of(len(ranks), drawn.most_of_a_rank)
    opening, steps = opening_step(frames)
    return {
        "layout": timeline_layout(frames, ranks, LIGHT, drawn).to_plotly_json(),
        "rows": {name: getattr(rows, name) for name in _GEOMETRY},
        "kernels": kernel_store(drawn, ranks, rows, start),
        "ranks": ranks,
        "origin_ns": origin_ns,
        "whole_ns": [edge + origin_ns for edge in detail.edges],
        "stretches": detail.stretches,
        "opening": opening,
        "num_phases_left_out": num_phases - len(phases),
        "phases": {
            "rank": phases["rank"].tolist(),
            "phase": {"strings": strings.tolist(), "codes": codes.tolist()},
            **_times(phases, start),
        },
        "steps": {"step": steps["step"].tolist(), **_times(steps, start)},
    }


def _times(spans: pd.DataFrame, start: int) -> dict[str, list[int]]:
    return {name: (spans[name] - start).tolist() for name in ("start_ns", "end_ns")}
