"""Points and edges of devices: kernels in the order of their streams, and what they wait for.

A kernel begins after its launch, after the previous kernel of its stream, and after the kernels of
other streams whose events its stream waits for. If a trace does not show the last of these, a
kernel of another stream that ended just before is inferred to be what it waited for; else, without
a launch, the host's last point before it. A wait of the
host ends after the kernel that it waits for; without one that is stated, after the last kernel that
had been launched and ended before.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from commtrace.analyze.replay.graph import (
    AFTER,
    KERNEL,
    KERNEL_BEGIN,
    KERNEL_END,
    LAUNCH,
    LAUNCHING,
    LONG_AGO,
    STREAM,
    SYNC_BEGIN,
    SYNC_END,
    WAKE,
    Links,
    Points,
    points_of_rows,
)
from commtrace.analyze.run.frame import Frames
from commtrace.schema import STREAM_WAIT

_LEAST_DELAY_NS = 5_000
"""Delay of a kernel from which a dependency is looked for that the trace does not state."""
_MOST_AFTER_NS = 12_000
"""Longest time between the end of a kernel and the begin of another that waited for it."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceWork:
    """Work of the devices of some ranks.

    Attributes:
        points: Begins and ends of kernels, two per row of `kernels`.
        kernels: `rank id call_id stream_of begin end` by rows of table `kernels`, in the order of
            `stream_of`, the number of a stream in this part, and time.
        links: Edges between these points, and to and from points of the host.
    """

    points: Points
    kernels: pd.DataFrame
    links: Links


def device_work(part: Frames, host: pd.DataFrame, first_point: int, first_chain: int) -> DeviceWork:
    """Return the work of the devices of some ranks.

    Args:
        part: All rows of these ranks.
        host: Points of the host, of `host_points`, whose numbers are their places.
        first_point: Number of the first new point.
        first_chain: Number of the first new chain.
    """
    kernels = _kernels(part)
    num = len(kernels)
    begin_point = first_point + 2 * np.arange(num)
    chain = np.repeat(first_chain + kernels["stream_of"].to_numpy(), 2)
    points = Points.of(
        np.tile([KERNEL_BEGIN, KERNEL_END], num),
        np.repeat(kernels["rank"].to_numpy(), 2),
        np.repeat(kernels.index.to_numpy(), 2),
        np.stack([kernels["begin"], kernels["end"]], axis=1).ravel() if num else np.zeros(0),
        chain,
    )
    kernels = kernels.assign(begin_point=begin_point, end_point=begin_point + 1)
    if not num:
        return DeviceWork(points, kernels, _no_links())
    links = Links.of(
        begin_point, begin_point + 1, kernels["end"] - kernels["begin"], KERNEL
    ).joined(_begins(part, kernels, host), _wakes(part, kernels, host))
    return DeviceWork(points, kernels, links)


def _no_links() -> Links:
    nothing = np.zeros(0, dtype="int64")
    return Links.of(nothing, nothing, nothing, KERNEL)


def _kernels(part: Frames) -> pd.DataFrame:
    table = part.kernels
    table = table[(table["start_ns"] >= 0) & (table["duration_ns"] >= 0)]
    streams = pd.MultiIndex.from_frame(
        table[["rank", "device", "stream"]].astype({"device": object})
    )
    begin = table["start_ns"] - part.start_ns
    found = pd.DataFrame(
        {
            "rank": table["rank"],
            "call_id": table["call_id"],
            "id": table["id"],
            "stream_of": pd.factorize(streams, sort=True)[0],
            "begin": begin,
            "end": begin + table["duration_ns"],
            "launch": (table["launch_ns"] - part.start_ns).where(table["launch_ns"] >= 0, -1),
        }
    ).astype("int64")
    return found.sort_values(["stream_of", "begin", "id"], kind="stable")


def _begins(part: Frames, kernels: pd.DataFrame, host: pd.DataFrame) -> Links:
    """Return the edges that lead to the begins of kernels."""
    begin, point = kernels["begin"].to_numpy(), kernels["begin_point"].to_numpy()
    stream, rank = kernels["stream_of"].to_numpy(), kernels["rank"].to_numpy()
    launch_point = points_of_rows(host["sort"], host["row"], LAUNCH, kernels.index)
    sources = [
        (launch_point, kernels["launch"].to_numpy(), LAUNCHING),
        (*_previous(kernels, stream), STREAM),
        (*_waited_for(part, kernels), AFTER),
    ]
    # The shortest launch of a rank is what a kernel takes that waits for nothing else.
    latency = pd.Series(np.where(launch_point >= 0, begin - sources[0][1], np.inf))
    latency = latency.groupby(rank).transform("min").to_numpy()
    least = np.where(np.isfinite(latency), latency, 0).astype("int64")
    ready = [
        np.where(at >= 0, since + (least if sort == LAUNCHING else 0), LONG_AGO)
        for at, since, sort in sources
    ]
    binding = np.argmax(ready, axis=0)
    delay = begin - np.max(ready, axis=0)
    after, after_end = _ended_just_before(kernels, (delay > _LEAST_DELAY_NS))
    delay[after >= 0] = 0
    found = Links.of(
        after[after >= 0], point[after >= 0], (begin - after_end)[after >= 0], AFTER, True
    )
    unlaunched = (launch_point < 0) & (delay > _LEAST_DELAY_NS)
    last, last_at = _last_of_host(host, kernels, unlaunched)
    launched = last >= 0
    delay[launched] = 0
    found = found.joined(
        Links.of(last[launched], point[launched], (begin - last_at)[launched], LAUNCHING, True)
    )
    for number, (source, since, sort) in enumerate(sources):
        own = source >= 0
        # An edge never lets a kernel begin later than it did.
        length = np.minimum(
            np.where(binding == number, delay, 0) + (least if sort == LAUNCHING else 0),
            begin - since,
        )
        found = found.joined(Links.of(source[own], point[own], length[own], sort))
    return found


def _previous(kernels: pd.DataFrame, stream: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the end of the previous kernel of each stream: point and time."""
    same = np.append(False, stream[1:] == stream[:-1])
    ends, points = (
        kernels[name].shift(1, fill_value=0).to_numpy() for name in ("end", "end_point")
    )
    return np.where(same, points, -1), np.where(same, ends, 0)


def _waited_for(part: Frames, kernels: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Return the kernel that the stream of each kernel waits for by an event: point and time."""
    found = np.full(len(kernels), -1), np.zeros(len(kernels), dtype="int64")
    syncs = part.syncs
    waits = syncs[
        (syncs["kind"] == STREAM_WAIT) & (syncs["kernel_id"] >= 0) & (syncs["at_ns"] >= 0)
    ]
    if waits.empty:
        return found
    source = _places(kernels, waits["rank"], waits["kernel_id"])
    launched = pd.DataFrame(
        {
            "rank": kernels["rank"].to_numpy(),
            "stream": part.kernels.loc[kernels.index, "stream"].to_numpy(),
            "at": kernels["launch"].to_numpy(),
            "place": np.arange(len(kernels)),
        }
    ).sort_values("at", kind="stable")
    events = pd.DataFrame(
        {
            "rank": waits["rank"],
            "stream": waits["stream"],
            "at": waits["at_ns"] - part.start_ns,
            "source": source,
        }
    )[source >= 0].sort_values("at", kind="stable")
    met = pd.merge_asof(
        events, launched[launched["at"] >= 0], on="at", by=["rank", "stream"], direction="forward"
    ).dropna(subset=["place"])
    end, end_point = kernels["end"].to_numpy(), kernels["end_point"].to_numpy()
    met = met.assign(end=end[met["source"]]).sort_values("end", kind="stable")
    target = met["place"].to_numpy().astype("int64")
    # If a kernel waits for several events, the last counts.
    found[0][target], found[1][target] = end_point[met["source"]], met["end"]
    late = found[1] > kernels["begin"].to_numpy()
    found[0][late] = -1
    return found


def _places(kernels: pd.DataFrame, rank: pd.Series, kernel_id: pd.Series) -> np.ndarray:
    """Return the places of kernels by rank and id; -1 if there are none."""
    keys = pd.MultiIndex.from_arrays([kernels["rank"], kernels["id"]])
    place = pd.Series(np.arange(len(kernels)), index=keys)
    wanted = pd.MultiIndex.from_arrays([rank, kernel_id])
    return place[~place.index.duplicated()].reindex(wanted).fillna(-1).to_numpy().astype("int64")


def _ended_just_before(kernels: pd.DataFrame, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the last kernel of the rank's other streams that ended just before a kernel began."""
    found = np.full(len(kernels), -1), np.zeros(len(kernels), dtype="int64")
    if not wanted.any():
        return found
    rank, stream = kernels["rank"].to_numpy(), kernels["stream_of"].to_numpy()
    end, begin = kernels["end"].to_numpy(), kernels["begin"].to_numpy()
    for each in np.unique(rank[wanted]).tolist():
        own = np.flatnonzero(rank == each)
        order = own[np.argsort(end[own], kind="stable")]
        targets = np.flatnonzero(wanted & (rank == each))
        last = np.searchsorted(end[order], begin[targets], side="right") - 1
        source = order[np.maximum(last, 0)]
        fits = (last >= 0) & (stream[source] != stream[targets])
        fits &= begin[targets] - end[source] <= _MOST_AFTER_NS
        found[0][targets[fits]] = kernels["end_point"].to_numpy()[source[fits]]
        found[1][targets[fits]] = end[source[fits]]
    return found


def _last_of_host(
    host: pd.DataFrame, kernels: pd.DataFrame, wanted: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the last point of the rank's host before a kernel began, and its time."""
    found = np.full(len(kernels), -1), np.zeros(len(kernels), dtype="int64")
    rows = np.flatnonzero(wanted)
    if not len(rows) or host.empty:
        return found
    points = host[["rank", "at"]].rename_axis("point").reset_index().sort_values("at")
    wanted_at = pd.DataFrame(
        {
            "rank": kernels["rank"].to_numpy()[rows],
            "at": kernels["begin"].to_numpy()[rows],
            "row": rows,
        }
    ).sort_values("at")
    met = pd.merge_asof(wanted_at, points.assign(since=points["at"]), on="at", by="rank").dropna()
    target = met["row"].to_numpy()
    found[0][target], found[1][target] = met["point"].astype("int64"), met["since"].astype("int64")
    return found


def _wakes(part: Frames, kernels: pd.DataFrame, host: pd.DataFrame) -> Links:
    """Return the edges by which waits of the host end."""
    waits = host[host["sort"] == SYNC_END]
    if waits.empty:
        return _no_links()
    rows = part.syncs.loc[waits["row"]]
    source = _places(kernels, rows["rank"], rows["kernel_id"])
    begin_of = host[host["sort"] == SYNC_BEGIN].drop_duplicates("row").set_index("row")["at"]
    stated, at = source >= 0, waits["at"].to_numpy()
    since = begin_of.reindex(waits["row"]).to_numpy("float64")
    for each in np.unique(waits["rank"]).tolist():
        own = np.flatnonzero(kernels["rank"] == each)
        order = own[np.argsort(kernels["end"].to_numpy()[own], kind="stable")]
        targets = np.flatnonzero((waits["rank"] == each).to_numpy() & ~stated)
        last = np.searchsorted(kernels["end"].to_numpy()[order], at[targets], side="right") - 1
        candidate = order[np.maximum(last, 0)] if len(order) else np.zeros(len(targets), "int64")
        # A wait that began after the kernel's end did not wait for it.
        fits = (last >= 0) & (len(order) > 0)
        if len(order):
            fits &= kernels["end"].to_numpy()[candidate] >= since[targets]
        source[targets[fits]] = candidate[fits]
    own = source >= 0
    ends = kernels["end"].to_numpy()[source]
    # The wait returns when both have been reached: the kernel's end, and its own begin.
    length = at - np.maximum(ends, np.nan_to_num(since)).astype("int64")
    return Links.of(
        kernels["end_point"].to_numpy()[source[own]], waits.index.to_numpy()[own], length[own],
        WAKE, ~stated[own],
    )  # fmt: skip
