"""Kernels on their lanes, as the page's script reads them.

    {"lanes": [{"row", "offset", "rank", "title", "starts", "lasts", "names", "sorts",
                "delays" | "nums", "busy"}],
     "names": [texts], "sorts": [{"name", "is_sent"}], "height", "num_kernels", "num_merged"}

`starts` are differences to the start before. A lane of single kernels has the `delays` from their
launches to their starts, -1 if unknown. A lane of more than its share of `MAX_BARS` is merged into
columns of time, and has the number of kernels and the busy time of each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from commtrace.figures.kernel_lanes import DrawnLanes
from commtrace.figures.timeline_rows import TimelineRows

MAX_BARS = 150_000
"""Number of bars in a page, which takes about 8 bytes for each."""


def kernel_store(
    drawn: DrawnLanes, ranks: list[int], geometry: TimelineRows, start_ns: int
) -> dict[str, Any]:
    """Return the lanes of some ranks, with times in ns since `start_ns`."""
    bars = drawn.bars
    names, all_names = pd.factorize(bars["name"])
    keys = bars["is_sent"].map({True: "sent ", False: "own "}) + bars["sort"].astype(object)
    sorts, all_sorts = pd.factorize(keys)
    bars = bars.assign(names=names, sorts=sorts)
    rows = {rank: place for place, rank in enumerate(ranks)}
    by_lane: dict[Any, pd.DataFrame] = dict(iter(bars.groupby("lane")))
    return {
        "lanes": [
            {
                "row": rows[rank],
                "offset": geometry.lane(place),
                "rank": rank,
                "title": title,
                **_columns(by_lane[lane], start_ns),
            }
            for lane, (rank, place, title) in enumerate(
                drawn.lanes[["rank", "place", "title"]].values.tolist()
            )
            if lane in by_lane
        ],
        "names": all_names.tolist(),
        "sorts": [
            {"name": key.partition(" ")[2], "is_sent": key.startswith("sent ")} for key in all_sorts
        ],
        "height": geometry.lane_height,
        "num_kernels": drawn.num_kernels,
        "num_merged": int(bars.loc[bars["is_merged"].astype(bool), "num_kernels"].sum()),
    }


def _columns(bars: pd.DataFrame, start_ns: int) -> dict[str, list[int]]:
    starts = (bars["start_ns"] - start_ns).to_numpy()
    delay = (bars["start_ns"] - bars["launch_ns"]).clip(lower=0)
    delay = delay.where(bars["launch_ns"] >= 0, -1)
    more = (
        {"nums": bars["num_kernels"], "busy": bars["busy_ns"]}
        if bars["is_merged"].any()
        else {"delays": delay}
    )
    columns = {"names": bars["names"], "sorts": bars["sorts"], **more}
    return {
        "starts": np.diff(starts, prepend=0).tolist(),
        "lasts": (bars["end_ns"] - bars["start_ns"]).tolist(),
        **{name: values.tolist() for name, values in columns.items()},
    }
