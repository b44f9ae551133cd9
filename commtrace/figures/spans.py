"""Tables that the timeline draws: calls in lanes, or shares of time if there are too many calls.

A million calls can neither be drawn singly nor be distinguished on a screen. `marks` therefore
returns each call of a run, or of a time window, as long as they are few. Otherwise, it divides the
time into columns and returns the share of each column that a rank spends in each kind of call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from commtrace.analyze.measures.arrivals import arrivals, end_ns
from commtrace.analyze.run.frame import Frames

WAIT, TRANSFER = "wait", "transfer"


def call_spans(frames: Frames, window_ns: tuple[int, int] | None = None) -> pd.DataFrame:
    """Return a row per call that touches the window.

    Columns: `row` (in table `comm` of the run), `rank`, `kind`, `lane` (overlapping calls of a rank
    are in different lanes), `start_ns`, `ready_ns` (arrival of the last peer; the start if it is
    unknown or there was no wait), `end_ns`.
    """
    comm = frames.comm
    arrived = arrivals(frames)["arrival_ns"]
    start, end = comm["issue_ns"], end_ns(comm)
    spans = pd.DataFrame(
        {
            "row": comm.index,
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
        # Without a loop over the calls: those that overlap no other one are in lane 0.
        is_free = np.append(True, start[1:] >= np.maximum.accumulate(end)[:-1])
        is_among_others = ~(is_free & np.append(is_free[1:], True))
        few = zip(*(each[is_among_others].tolist() for each in (start, end)), strict=True)
        found[rows.index.to_numpy()[is_among_others]] = _lanes_of(few)
    return found


def _lanes_of(spans: Iterable[tuple[int, int]]) -> list[int]:
    """Return the lanes of spans in order of their starts."""
    free_from: list[int] = []
    found = []
    for begin, finish in spans:
        lane = 0
        for free in free_from:
            if free <= begin:
                free_from[lane] = finish
                break
            lane += 1
        else:
            free_from.append(finish)
        found.append(lane)
    return found


@dataclass(frozen=True, slots=True)
class Marks:
    """Marks of calls on the timeline.

    Attributes:
        table: The marks, as returned by `marks`.
        are_single: Each mark is a part of a single call.
    """

    table: pd.DataFrame
    are_single: bool


def call_marks(
    frames: Frames, ranks: Sequence[int], window_ns: tuple[int, int] | None, max_marks: int
) -> Marks:
    """Return at most about `max_marks` marks for the calls of some ranks, computed part by part."""
    chosen = tuple(ranks)
    parts = frames.by_ranks(_extent_of_part, chosen, window_ns)
    num_marks = sum(each.num_marks for each in parts)
    if num_marks <= max_marks:
        single = frames.by_ranks(_single_of_part, chosen, window_ns)
        return Marks(pd.concat(single, ignore_index=True), True)
    timed = [each for each in parts if each.num_marks]
    first = min(each.first for each in timed)
    num_columns = max(max_marks // sum(each.num_rows for each in timed), 1)
    width = max(-(-(max(each.last for each in timed) - first) // num_columns), 1)
    columns = frames.by_ranks(_columns_of_part, chosen, window_ns, first, width)
    return Marks(pd.concat(columns, ignore_index=True), False)


@dataclass(frozen=True, slots=True)
class _Extent:
    """Extent of the waits and transfers of a part.

    Attributes:
        num_marks: Number of them.
        num_rows: Number of combinations of rank, kind and part.
        first: Start of the first.
        last: End of the last.
    """

    num_marks: int
    num_rows: int
    first: int
    last: int


def _waits_and_transfers(
    part: Frames, ranks: tuple[int, ...], window_ns: tuple[int, int] | None
) -> pd.DataFrame:
    # A part of none of the ranks is not read any further.
    if not part.comm["rank"].isin(ranks).any():
        part = part.narrowed(rows=part.comm.index[:0])
    spans = call_spans(part, window_ns)
    return _parts(spans[spans["rank"].isin(ranks)])


def _extent_of_part(
    part: Frames, ranks: tuple[int, ...], window_ns: tuple[int, int] | None
) -> _Extent:
    parts = _waits_and_transfers(part, ranks, window_ns)
    if parts.empty:
        return _Extent(0, 0, 0, 0)
    edges = int(parts["start_ns"].min()), int(parts["end_ns"].max())
    return _Extent(len(parts), len(parts[_BY].drop_duplicates()), *edges)


def _single_of_part(
    part: Frames, ranks: tuple[int, ...], window_ns: tuple[int, int] | None
) -> pd.DataFrame:
    return _single(_waits_and_transfers(part, ranks, window_ns))


def _columns_of_part(
    part: Frames,
    ranks: tuple[int, ...],
    window_ns: tuple[int, int] | None,
    first: int,
    width: int,
) -> pd.DataFrame:
    return _in_columns(_waits_and_transfers(part, ranks, window_ns), first, width)


_BY = ["rank", "kind", "part"]


def marks(spans: pd.DataFrame, max_marks: int) -> tuple[pd.DataFrame, bool]:
    """Return at most about `max_marks` marks for the spans, and whether each is a single call.

    Columns: `row` (in table `comm`, -1 for several calls), `rank`, `kind`, `part` (wait, before the
    last peer arrived, or transfer), `start_ns`, `end_ns`, `busy_ns` and `num_calls` in between, and
    `top` and `height` as fractions of the rank's height.
    """
    parts = _parts(spans)
    if len(parts) <= max_marks:
        return _single(parts), True
    num_columns = max(max_marks // len(parts[_BY].drop_duplicates()), 1)
    first, last = int(parts["start_ns"].min()), int(parts["end_ns"].max())
    return _in_columns(parts, first, max(-(-(last - first) // num_columns), 1)), False


def _parts(spans: pd.DataFrame) -> pd.DataFrame:
    """Return the waits and the transfers of calls."""
    waits, transfers = spans[spans["ready_ns"] > spans["start_ns"]], spans
    return pd.concat(
        [
            waits.assign(part=WAIT, end_ns=waits["ready_ns"]),
            transfers.assign(part=TRANSFER, start_ns=transfers["ready_ns"]),
        ],
        ignore_index=True,
    ).drop(columns="ready_ns")


def _single(parts: pd.DataFrame) -> pd.DataFrame:
    num_lanes = parts.groupby("rank")["lane"].transform("max") + 1
    return parts.assign(
        busy_ns=parts["end_ns"] - parts["start_ns"],
        num_calls=1,
        top=parts["lane"] / num_lanes,
        height=1 / num_lanes,
    ).drop(columns="lane")


def _in_columns(parts: pd.DataFrame, first: int, width: int) -> pd.DataFrame:
    """Return a mark per time column, rank, kind and part, as high as its share of the column.

    A call is counted in the column in which it begins; overlapping calls share the height. Columns
    begin at `first`.
    """
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
        .groupby([*_BY, "column"], as_index=False)
        .agg({"start_ns": "first", "busy_ns": "sum", "num_calls": "sum"})
        .sort_values(["rank", "column", "kind", "part"], ascending=[True, True, True, False])
    )
    cell = found.groupby(["rank", "column"])["busy_ns"]
    height = found["busy_ns"] / cell.transform("sum").clip(lower=width)
    below = height.groupby([found["rank"], found["column"]]).cumsum()
    return found.assign(
        row=-1, end_ns=found["start_ns"] + width, top=1 - below, height=height
    ).drop(columns="column")


def few_phase_spans(
    frames: Frames, ranks: Sequence[int], most: int, window_ns: tuple[int, int] | None = None
) -> tuple[int, pd.DataFrame]:
    """Return the number of `phase_spans` of some ranks, and the spans unless they exceed `most`.

    They are computed part by part.
    """
    number, spans, _ = _few(frames.by_ranks(_few_of_part, tuple(ranks), most, window_ns, fold=_few))
    return number, spans


_Few = tuple[int, pd.DataFrame, int]
"""Number of rows, the rows themselves unless they are too many, and the largest number."""


def _few_of_part(
    part: Frames, ranks: tuple[int, ...], most: int, window_ns: tuple[int, int] | None
) -> _Few:
    spans = phase_spans(part, window_ns)
    spans = spans[spans["rank"].isin(ranks)].reset_index(drop=True)
    return _few([(len(spans), spans, most)])


def _few(parts: list[_Few]) -> _Few:
    number, most = sum(each for each, _, _ in parts), parts[0][2]
    tables = [spans for _, spans, _ in parts]
    spans = pd.concat(tables, ignore_index=True) if len(tables) > 1 else tables[0]
    return number, spans.head(0) if number > most else spans, most


def phase_spans(frames: Frames, window_ns: tuple[int, int] | None = None) -> pd.DataFrame:
    """Return a row per series of operators of the same phase on a rank.

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
