"""Tables that the timeline draws: calls in lanes, or shares of time if there are too many calls.

A million calls can neither be drawn one by one nor be distinguished on a screen. `marks` therefore
returns each call of a run, or of a time window, as long as they are few. Otherwise, it divides the
time into columns and returns the share of each column that a rank spends in each kind of call.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.arrivals import arrivals, end_ns
from commtrace.analyze.frame import Frames

WAIT, TRANSFER = "wait", "transfer"


def call_spans(frames: Frames, window_ns: tuple[int, int] | None = None) -> pd.DataFrame:
    """Return one row per call that touches the window.

    Columns: `row` (in table `comm`), `rank`, `kind`, `lane` (overlapping calls of a rank are in
    different lanes), `start_ns`, `ready_ns` (arrival of the last peer; the start if it is unknown
    or there was no wait), `end_ns`.
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
    spans.insert(3, "lane", lanes(spans["rank"], spans["start_ns"], spans["end_ns"]))
    if window_ns is not None:
        first, last = window_ns
        spans = spans[(spans["end_ns"] >= first) & (spans["start_ns"] <= last)]
    return spans.reset_index(drop=True)


def lanes(rank: pd.Series, start_ns: pd.Series, end_ns: pd.Series) -> np.ndarray:
    """Return, for each span, the lowest lane of its rank in which it overlaps no earlier span."""
    spans = pd.DataFrame({"rank": rank.to_numpy(), "start": start_ns.to_numpy()})
    spans = spans.assign(end=end_ns.to_numpy()).sort_values(["rank", "start"], kind="stable")
    found = np.zeros(len(spans), dtype="int64")
    for _, rows in spans.groupby("rank", sort=False):
        start, end = rows["start"].to_numpy(), rows["end"].to_numpy()
        # The usual case, without a loop over the calls: nothing overlaps, and all are in lane 0.
        if (start[1:] >= np.maximum.accumulate(end)[:-1]).all():
            continue
        free_from: list[int] = []
        for place, begin, finish in zip(rows.index, start.tolist(), end.tolist(), strict=True):
            lane = next((n for n, free in enumerate(free_from) if free <= begin), len(free_from))
            if lane == len(free_from):
                free_from.append(finish)
            free_from[lane] = finish
            found[place] = lane
    return found


def marks(spans: pd.DataFrame, max_marks: int) -> tuple[pd.DataFrame, bool]:
    """Return at most about `max_marks` marks for the spans, and whether each mark is one call.

    Columns: `row` (in table `comm`, -1 for several calls), `rank`, `kind`, `part` (wait, before the
    last peer arrived, or transfer), `start_ns`, `end_ns`, `busy_ns` and `num_calls` in between, and
    `top` and `height` as fractions of the rank's height.
    """
    waits, transfers = spans[spans["ready_ns"] > spans["start_ns"]], spans
    parts = pd.concat(
        [
            waits.assign(part=WAIT, end_ns=waits["ready_ns"]),
            transfers.assign(part=TRANSFER, start_ns=transfers["ready_ns"]),
        ],
        ignore_index=True,
    ).drop(columns="ready_ns")
    if len(parts) > max_marks:
        return _in_columns(parts, max_marks), False
    num_lanes = parts.groupby("rank")["lane"].transform("max") + 1
    return (
        parts.assign(
            busy_ns=parts["end_ns"] - parts["start_ns"],
            num_calls=1,
            top=parts["lane"] / num_lanes,
            height=1 / num_lanes,
        ).drop(columns="lane"),
        True,
    )


def _in_columns(parts: pd.DataFrame, max_marks: int) -> pd.DataFrame:
    """Return one mark per time column, rank, kind and part, as high as its share of the column.

    A call is counted in the column in which it begins; overlapping calls share the height.
    """
    by = ["rank", "kind", "part"]
    num_columns = max(max_marks // len(parts[by].drop_duplicates()), 1)
    first, last = parts["start_ns"].min(), parts["end_ns"].max()
    width = max(-(-(last - first) // num_columns), 1)
    begins = (parts["start_ns"] - first) // width
    ends = ((parts["end_ns"] - 1 - first) // width).clip(lower=begins)
    pieces = parts.loc[parts.index.repeat(ends - begins + 1)]
    is_start = ~pieces.index.duplicated()
    column = begins[pieces.index] + pieces.groupby(level=0).cumcount()
    left = first + column * width
    busy = pieces["end_ns"].clip(upper=left + width) - pieces["start_ns"].clip(lower=left)
    counts = is_start & (pieces["part"] == TRANSFER)
    found = (
        pieces.assign(column=column, start_ns=left, busy_ns=busy, num_calls=counts)
        .groupby([*by, "column"], as_index=False)
        .agg({"start_ns": "first", "busy_ns": "sum", "num_calls": "sum"})
        .sort_values(["rank", "column", "kind", "part"], ascending=[True, True, True, False])
    )
    cell = found.groupby(["rank", "column"])["busy_ns"]
    height = found["busy_ns"] / cell.transform("sum").clip(lower=width)
    below = height.groupby([found["rank"], found["column"]]).cumsum()
    return found.assign(
        row=-1, end_ns=found["start_ns"] + width, top=1 - below, height=height
    ).drop(columns="column")


def phase_spans(frames: Frames, window_ns: tuple[int, int] | None = None) -> pd.DataFrame:
    """Return one row per series of operators of one phase on one rank.

    Columns: `rank phase start_ns end_ns`. The table is empty if operators were not recorded.
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
