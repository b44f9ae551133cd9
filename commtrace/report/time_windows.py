"""Data of the page's timeline besides the calls: rows, phases, steps, kernels, and layout."""

from __future__ import annotations

from typing import Any

import pandas as pd

from commtrace.analyze import Frames
from commtrace.analyze.arrivals import end_ns
from commtrace.figures.kernel_lanes import kernel_lanes
from commtrace.figures.spans import phase_spans
from commtrace.figures.theme import LIGHT
from commtrace.figures.timeline import ranks_of, timeline_layout
from commtrace.figures.timeline_rows import TimelineRows
from commtrace.report.kernel_store import kernel_store

MAX_PHASES = 60_000
_GEOMETRY = ("pixels", "calls", "middle", "steps", "step_height")


def timeline_data(frames: Frames, origin_ns: int = 0) -> dict[str, Any]:
    """Return the data, with times in ns since the start of `frames`.

    That start is `origin_ns` after the start of the run. If there are more than `MAX_PHASES`
    phases, all of them are left out.
    """
    start = frames.start_ns
    ranks = ranks_of(frames)
    phases = phase_spans(frames)
    num_phases = len(phases)
    if num_phases > MAX_PHASES:
        phases = phases.head(0)
    codes, strings = pd.factorize(phases["phase"])
    lanes = kernel_lanes(frames, ranks)
    rows = TimelineRows.of(len(ranks), lanes.most_of_a_rank)
    return {
        "layout": timeline_layout(frames, ranks, LIGHT, lanes).to_plotly_json(),
        "rows": {name: getattr(rows, name) for name in _GEOMETRY},
        "kernels": kernel_store(lanes, ranks, rows, start),
        "ranks": ranks,
        "origin_ns": origin_ns,
        "whole_ns": [edge + origin_ns for edge in _edges(frames)],
        "num_phases_left_out": num_phases - len(phases),
        "phases": {
            "rank": phases["rank"].tolist(),
            "phase": {"strings": strings.tolist(), "codes": codes.tolist()},
            **_times(phases, start),
        },
        "steps": _steps(frames, start),
    }


def _edges(frames: Frames) -> tuple[int, int]:
    """Return the start of the first drawn item and the end of the last one."""
    comm = frames.comm[frames.comm["issue_ns"] >= 0]
    kernels = frames.kernels[
        (frames.kernels["start_ns"] >= 0) & (frames.kernels["duration_ns"] >= 0)
    ]
    begins = [
        *(comm["issue_ns"].min(), frames.timed_steps["start_ns"].min()),
        kernels["start_ns"].min(),
    ]
    ends = [
        *(end_ns(comm).max(), frames.timed_steps["end_ns"].max()),
        (kernels["start_ns"] + kernels["duration_ns"]).max(),
    ]
    first = min((int(value) for value in begins if value == value), default=frames.start_ns)
    last = max((int(value) for value in ends if value == value), default=first)
    return first - frames.start_ns, max(last, first + 1) - frames.start_ns


def _steps(frames: Frames, start: int) -> dict[str, list[int]]:
    """Return the steps of the first rank that marked any."""
    steps = frames.timed_steps.sort_values(["rank", "step"])
    steps = steps[steps["rank"] == steps["rank"].min()]
    return {"step": steps["step"].tolist(), **_times(steps, start)}


def _times(spans: pd.DataFrame, start: int) -> dict[str, list[int]]:
    return {name: (spans[name] - start).tolist() for name in ("start_ns", "end_ns")}
