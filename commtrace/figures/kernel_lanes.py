"""Kernels on their lanes: the streams of each rank's devices, below the rank's calls.

Kernels of a lane that has too many of them are merged into columns of time, with the share of the
column in which the lane is busy. The timeline and the page draw the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.devices.device_work import rows_of_calls
from commtrace.analyze.measures.covered import Covered
from commtrace.analyze.run.cached_per_run import cached_per_run
from commtrace.analyze.run.frame import Frames
from commtrace.schema import COMMUNICATION, COMPUTE, MEMCPY, MEMSET

MOST_LANES, MOST_OF_A_RANK = 512, 8
"""Number of lanes of a figure, and of a rank. Streams that have none share the rank's last lane."""

SORTS = {COMPUTE: "compute", MEMCPY: "copy", MEMSET: "copy"}
"""Sorts of work by category; communication has its kind instead, and anything else `other`."""

_ORDER = {"compute": 0, "copy": 1, "other": 2}
_AFTER_ALL = 3


@dataclass(frozen=True, slots=True)
class Lanes:
    """Lanes of some ranks, and the kernels on them.

    Attributes:
        lanes: A row per lane: `rank`, `place` in the rank, from 0, and `title`.
        kernels: A row per kernel: `lane`, its row in `lanes`, `name`, `sort`, `is_sent` (it
            communicates, and `sort` is the kind), `start_ns`, `end_ns`, `launch_ns`.
    """

    lanes: pd.DataFrame
    kernels: pd.DataFrame

    @property
    def most_of_a_rank(self) -> int:
        """Number of lanes of the rank with the most."""
        return int(self.lanes["place"].max()) + 1 if len(self.lanes) else 0

    def within(self, window_ns: tuple[int, int] | None) -> Lanes:
        """Return the same lanes with the kernels that touch a window."""
        if window_ns is None:
            return self
        first, last = window_ns
        touches = (self.kernels["end_ns"] >= first) & (self.kernels["start_ns"] <= last)
        return Lanes(self.lanes, self.kernels[touches])


@dataclass(frozen=True, slots=True)
class DrawnLanes:
    """Lanes of some ranks, and the bars on them.

    Attributes:
        lanes: As in `Lanes`.
        bars: As returned by `lane_marks`.
        num_kernels: Number of kernels that the bars stand for.
    """

    lanes: pd.DataFrame
    bars: pd.DataFrame
    num_kernels: int

    @property
    def most_of_a_rank(self) -> int:
        """Number of lanes of the rank with the most."""
        return int(self.lanes["place"].max()) + 1 if len(self.lanes) else 0


def drawn_lanes(
    frames: Frames,
    ranks: Sequence[int],
    max_bars: int,
    *,
    window_ns: tuple[int, int] | None = None,
    most_of_a_lane: int | None = None,
) -> DrawnLanes:
    """Return the lanes of some ranks with their bars, computed part by part.

    Args:
        frames: The run.
        ranks: The ranks.
        max_bars: Number of bars above which kernels are merged.
        window_ns: The only time whose kernels are drawn, in Unix ns.
        most_of_a_lane: Largest number of bars of a lane, whatever `max_bars` allows.
    """
    chosen, most = tuple(ranks), most_lanes(frames, ranks)
    num_lanes = sum(frames.by_ranks(_num_lanes, chosen, most))
    bars_of_lane = max(max_bars // max(num_lanes, 1), 1)
    if most_of_a_lane is not None:
        bars_of_lane = min(bars_of_lane, most_of_a_lane)
    drawn, begin = [], 0
    for each in frames.by_ranks(_drawn_of_part, chosen, most, window_ns, bars_of_lane):
        drawn.append((each.lanes, each.bars.assign(lane=each.bars["lane"] + begin)))
        begin += len(each.lanes)
    lanes, bars = (pd.concat(tables, ignore_index=True) for tables in zip(*drawn, strict=True))
    return DrawnLanes(lanes, bars, int(bars["num_kernels"].sum()))


def _num_lanes(part: Frames, ranks: tuple[int, ...], most: int) -> int:
    return len(kernel_lanes(part, ranks, most).lanes)


def _drawn_of_part(
    part: Frames,
    ranks: tuple[int, ...],
    most: int,
    window_ns: tuple[int, int] | None,
    bars_of_lane: int,
) -> DrawnLanes:
    lanes = kernel_lanes(part, ranks, most).within(window_ns)
    return DrawnLanes(lanes.lanes, lane_marks(lanes, bars_of_lane), len(lanes.kernels))


def most_lanes(frames: Frames, ranks: Sequence[int]) -> int:
    """Return the number of lanes of each of some ranks; 0 if they are too many for a lane each."""
    num_ranks = sum(frames.by_ranks(_num_ranks_with_kernels, tuple(ranks)))
    return min(MOST_LANES // max(num_ranks, 1), MOST_OF_A_RANK)


def _num_ranks_with_kernels(part: Frames, ranks: tuple[int, ...]) -> int:
    kernels = part.kernels
    is_drawn = (kernels["start_ns"] >= 0) & (kernels["duration_ns"] >= 0)
    return int(kernels.loc[is_drawn & kernels["rank"].isin(ranks), "rank"].nunique())


def kernel_lanes(frames: Frames, ranks: Sequence[int], most: int | None = None) -> Lanes:
    """Return the lanes of some ranks of a run or a part, `most` of each; see `most_lanes`."""
    most = most_lanes(frames, ranks) if most is None else most
    drawn = _kernels(frames)
    drawn = drawn[drawn["rank"].isin(ranks)] if most else drawn.head(0)
    streams = _streams(drawn, most)
    keys = ["rank", "device", "stream"]
    place = streams.set_index(keys)["place"]
    lanes = (
        streams.sort_values(["rank", "place"], kind="stable")
        .drop_duplicates(["rank", "place"])[["rank", "place", "title"]]
        .reset_index(drop=True)
    )
    of_kernels = pd.MultiIndex.from_frame(drawn[keys])
    on_lane = pd.MultiIndex.from_arrays(
        [drawn["rank"], place.to_numpy()[place.index.get_indexer(of_kernels)]]
    )
    lane = pd.MultiIndex.from_frame(lanes[["rank", "place"]]).get_indexer(on_lane)
    ordered = drawn.assign(lane=lane).sort_values(["lane", "start_ns"], kind="stable")
    return Lanes(lanes, ordered.drop(columns=["device", "stream"]).reset_index(drop=True))


@cached_per_run
def _kernels(frames: Frames) -> pd.DataFrame:
    """Return the kernels of known start and duration, with the properties that are drawn."""
    kernels = frames.kernels
    kernels = kernels[(kernels["start_ns"] >= 0) & (kernels["duration_ns"] >= 0)]
    category = kernels["category"].astype(object)
    is_sent = category == COMMUNICATION
    sort = category.map(SORTS).fillna("other").to_numpy(dtype=object)
    if is_sent.any():
        kinds = np.append(frames.comm["kind"].astype(object).to_numpy(), "other")
        sort = np.where(is_sent, kinds[rows_of_calls(frames, kernels)], sort)
    return pd.DataFrame(
        {
            "rank": kernels["rank"],
            "device": kernels["device"].astype(object),
            "stream": kernels["stream"],
            "name": kernels["name"].astype(object),
            "sort": sort,
            "is_sent": is_sent,
            "start_ns": kernels["start_ns"],
            "end_ns": kernels["start_ns"] + kernels["duration_ns"],
            "launch_ns": kernels["launch_ns"],
        }
    )


def _streams(drawn: pd.DataFrame, most: int) -> pd.DataFrame:
    """Return a row per stream: `rank device stream place title`.

    A rank has `most` lanes: for the streams with the most kernels, first computation, then copies,
    then communication, and the last lane for all other streams.
    """
    keys = ["rank", "device", "stream"]
    sort = np.where(drawn["is_sent"], _AFTER_ALL, drawn["sort"].map(_ORDER))
    counts = drawn.assign(order=sort).groupby([*keys, "order"]).size().rename("num").reset_index()
    by_num = counts.sort_values(["num", "order"], ascending=[False, True], kind="stable")
    main = by_num.drop_duplicates(keys).set_index(keys)["order"]
    streams = counts.groupby(keys)["num"].sum().to_frame().join(main).reset_index()
    streams = streams.sort_values(["rank", "num"], ascending=[True, False], kind="stable")
    by_rank = streams.groupby("rank")
    num_streams = by_rank["num"].transform("size")
    has_own = (num_streams <= most) | (by_rank.cumcount() < most - 1)
    streams = streams.assign(order=streams["order"].where(has_own, _AFTER_ALL + 1))
    streams = streams.sort_values(["rank", "order", "device", "stream"], kind="stable")
    has_own = streams["order"] <= _AFTER_ALL
    place = streams.groupby("rank").cumcount().where(has_own, most - 1)
    shared = num_streams[streams.index] - (most - 1)
    num_devices = streams.groupby("rank")["device"].transform("nunique")
    number = streams["stream"].astype(str).where(streams["stream"] >= 0, "?")
    own = "stream " + number + (", " + streams["device"]).where(num_devices > 1, "")
    merged = shared.astype(str) + (" other" if most > 1 else "") + " streams"
    return streams.assign(place=place, title=own.where(has_own, merged))


def lane_marks(lanes: Lanes, most: int) -> pd.DataFrame:
    """Return the bars of the lanes, at most `most` a lane.

    Columns: `lane`, `sort`, `is_sent` and `name` (those with the most time), `start_ns`, `end_ns`,
    `launch_ns` (-1 if unknown or merged), `is_merged` (it is a column of time, not a kernel),
    `num_kernels` that begin in it, `busy_ns`.
    """
    kernels = lanes.kernels
    num = kernels.groupby("lane")["lane"].transform("size")
    single = kernels[num <= most].drop(columns="rank")
    lasts = single["end_ns"] - single["start_ns"]
    single = single.assign(is_merged=False, num_kernels=1, busy_ns=lasts)
    parts = [single]
    for lane, rows in kernels[num > most].groupby("lane"):
        parts.append(_merged(rows, most).assign(lane=lane))
    return pd.concat(parts).sort_values(["lane", "start_ns"], kind="stable").reset_index(drop=True)


def _merged(rows: pd.DataFrame, most: int) -> pd.DataFrame:
    """Return the kernels of a lane as columns of equal width; a kernel counts where it begins."""
    start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    first, last = int(start.min()), int(end.max())
    width = max(-(-(last - first) // most), 1)
    edges = first + width * np.arange(max(-(-(last - first) // width), 1), dtype="int64")
    until = np.minimum(edges + width, last)
    busy = Covered.by(start, end).within(edges, until)
    column = np.minimum((start - first) // width, len(edges) - 1)
    num = np.bincount(column, minlength=len(edges))
    lasts = pd.DataFrame(
        {
            "column": column,
            **{name: rows[name].to_numpy() for name in ("name", "sort", "is_sent")},
            "lasts": end - start,
        }
    )
    sums: Any = lasts.groupby(["column", "name", "sort", "is_sent"])["lasts"].sum()
    by_name = sums.reset_index()
    by_name = by_name.sort_values(["column", "lasts"], ascending=[True, False], kind="stable")
    main = by_name.drop_duplicates("column").set_index("column")
    # A column in which none begins has the kernel that runs on from the column before.
    main = main.reindex(range(len(edges))).ffill()
    table = pd.DataFrame(
        {
            **{name: main[name].to_numpy() for name in ("name", "sort", "is_sent")},
            "start_ns": edges,
            "end_ns": until,
            "launch_ns": -1,
            "is_merged": True,
            "num_kernels": num,
            "busy_ns": busy,
        }
    )
    return table[(busy > 0) | (num > 0)]
