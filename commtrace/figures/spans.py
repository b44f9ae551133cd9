"""What the timeline draws, as tables: calls in lanes, phases, and calls joined where they are many.

A million calls cannot be drawn one by one, nor be told apart on a screen. `joined` therefore makes
one mark of neighbours of a kind that lie closer than a resolution, which it coarsens until at most
a given number of marks remains; a narrower window shows the single calls again.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.arrivals import arrivals, end_ns
from commtrace.analyze.frame import Frames

FINEST = 1 / 2000


def call_spans(frames: Frames, window_ns: tuple[int, int] | None = None) -> pd.DataFrame:
    """One row per call that touches the window.

    Columns: `row` (in table `comm`), `rank`, `kind`, `lane` (calls of a rank that overlap lie in
    different ones), `start_ns`, `ready_ns` (when the last peer arrived; the start, where that is
    not known or nobody was waited for), `end_ns`.
    """
    comm = frames.comm
    arrived = arrivals(frames)["arrival_ns"]
    start, end = comm["issue_ns"], end_ns(comm)
    spans = pd.DataFrame(
        {
            "row": np.arange(len(comm)),
            "rank": comm["rank"],
            "kind": comm["kind"].astype(object),
            "start_ns": start,
            "ready_ns": arrived.where(arrived >= 0, start).clip(lower=start, upper=end),
            "end_ns": end,
        }
    )
    spans = spans[spans["start_ns"] >= 0].sort_values(["rank", "start_ns", "row"])
    spans.insert(3, "lane", _lanes(spans))
    if window_ns is not None:
        first, last = window_ns
        spans = spans[(spans["end_ns"] >= first) & (spans["start_ns"] <= last)]
    return spans.reset_index(drop=True)


def _lanes(spans: pd.DataFrame) -> np.ndarray:
    """The lowest lane in which each span, sorted by rank and start, meets no earlier one."""
    lanes = np.zeros(len(spans), dtype="int64")
    for _, rows in spans.reset_index(drop=True).groupby("rank", sort=False):
        start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
        if (start[1:] >= np.maximum.accumulate(end)[:-1]).all():
            continue
        free_from: list[int] = []
        for place, begin, finish in zip(rows.index, start.tolist(), end.tolist(), strict=True):
            lane = next((n for n, free in enumerate(free_from) if free <= begin), len(free_from))
            if lane == len(free_from):
                free_from.append(finish)
            free_from[lane] = finish
            lanes[place] = lane
    return lanes


def joined(spans: pd.DataFrame, max_marks: int) -> pd.DataFrame:
    """The spans as at most about `max_marks` marks, each single call kept where they fit.

    Columns as of `call_spans`, and `num_calls`; `row` is -1 where a mark holds several calls.
    """
    if len(spans) <= max_marks:
        return spans.assign(num_calls=1)
    width = spans["end_ns"].max() - spans["start_ns"].min()
    resolution = max(width * FINEST, 1.0)
    marks = _join_closer_than(spans, resolution)
    while len(marks) > max_marks and resolution < width:
        resolution *= 2
        marks = _join_closer_than(spans, resolution)
    return marks


def _join_closer_than(spans: pd.DataFrame, resolution_ns: float) -> pd.DataFrame:
    by = ["rank", "lane", "kind"]
    ordered = spans.sort_values([*by, "start_ns"])
    gap = ordered["start_ns"] - ordered.groupby(by)["end_ns"].shift()
    mark = (~(gap < resolution_ns)).cumsum()
    marks = ordered.groupby(mark).agg(
        row=("row", "first"),
        rank=("rank", "first"),
        kind=("kind", "first"),
        lane=("lane", "first"),
        start_ns=("start_ns", "min"),
        ready_ns=("ready_ns", "first"),
        end_ns=("end_ns", "max"),
        num_calls=("row", "size"),
    )
    several = marks["num_calls"] > 1
    marks["ready_ns"] = marks["ready_ns"].mask(several, marks["start_ns"])
    marks["row"] = marks["row"].mask(several, -1)
    return marks.reset_index(drop=True)


def phase_spans(frames: Frames, window_ns: tuple[int, int] | None = None) -> pd.DataFrame:
    """One row per stretch of operators of one phase on one rank: `rank phase start_ns end_ns`.

    Empty where operators were not recorded.
    """
    ops = frames.ops
    outer = ops[(ops["parent"] < 0) & (ops["start_ns"] >= 0)]
    spans = pd.DataFrame(
        {
            "rank": outer["rank"],
            "phase": outer["phase"].astype(object),
            "start_ns": outer["start_ns"],
            "end_ns": outer["start_ns"] + outer["duration_ns"].clip(lower=0),
        }
    ).sort_values(["rank", "start_ns"])
    if window_ns is not None:
        first, last = window_ns
        spans = spans[(spans["end_ns"] >= first) & (spans["start_ns"] <= last)]
    changes = (spans[["rank", "phase"]] != spans[["rank", "phase"]].shift()).any(axis=1)
    return (
        spans.groupby(changes.cumsum())
        .agg(
            rank=("rank", "first"),
            phase=("phase", "first"),
            start_ns=("start_ns", "min"),
            end_ns=("end_ns", "max"),
        )
        .reset_index(drop=True)
    )
