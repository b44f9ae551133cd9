"""Build the graph of work of a run: its hosts, devices and calls, and what these wait for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from commtrace.analyze.replay.devices import DeviceWork, device_work
from commtrace.analyze.replay.graph import (
    CALL_BEGIN,
    CALL_END,
    HOST,
    ISSUE,
    KERNEL,
    LONG_AGO,
    SYNC_BEGIN,
    SYNC_END,
    TRANSFER,
    WAIT,
    WAIT_BEGIN,
    WAIT_END,
    WAKE,
    Links,
    Points,
    Replay,
    WorkGraph,
    points_of_rows,
    replayed,
)
from commtrace.analyze.replay.host import calls_of_host, complete_points, host_points
from commtrace.analyze.replay.joins import JoinedCalls, joined_calls, needs_of
from commtrace.analyze.run.cached_per_run import of_run
from commtrace.analyze.run.frame import Frames

_BEGINS = {CALL_END: CALL_BEGIN, WAIT_END: WAIT_BEGIN, SYNC_END: SYNC_BEGIN}
_INSIDE = {CALL_END: ISSUE, WAIT_END: WAIT, SYNC_END: WAIT}


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Graph of the work of some ranks, without dependencies on others.

    Attributes:
        points: Points of the hosts, completions, and points of the devices.
        links: Edges between them.
        calls: A row per call for `joins.joined_calls`; `is_return` holds unless it completes at a
            point of its own.
    """

    points: Points
    links: Links
    calls: pd.DataFrame


def work_graph(run: Frames) -> WorkGraph:
    """Return the graph of work of a run, whose replay gives the recorded times.

    An edge leads back in time only where clocks of ranks disagree.
    """
    return recorded_replay(run).graph


@of_run
def recorded_replay(run: Frames) -> Replay:
    """Return the replay of a run as it was recorded."""
    points, links, calls = _put_together(run.by_ranks(_part_of))
    error = int(run.ranks["clock_error_ns"].max()) if len(run.ranks) else 0
    graph = _joined(points, links, calls, joined_calls(calls, len(points), 2 * max(error, 0)))
    replay = replayed(graph)
    if replay.times.is_reached.all():
        return replay
    # Clocks disagree by so much that calls would wait for each other in a circle.
    return replayed(_joined(points, links, calls, joined_calls(calls, len(points), 0)))


def _joined(points: Points, links: Links, calls: pd.DataFrame, joins: JoinedCalls) -> WorkGraph:
    """Return the graph of all ranks with their dependencies on each other."""
    calls["is_joined"] = joins.is_joined  # in place: a copy takes 100 bytes a call
    every = points.joined(joins.points)
    is_end = np.zeros(len(every), dtype=bool)
    is_end[joins.links.target[joins.links.sort == TRANSFER]] = True
    # The transfer takes the time that was seen inside of the call, or of its kernel.
    is_replaced = is_end[links.target] & np.isin(links.sort, [ISSUE, KERNEL])
    links = Links(
        links.source, links.target, np.where(is_replaced, 0, links.length), links.sort,
        links.is_inferred,
    ).joined(joins.links, _of_unjoined(calls, is_end))  # fmt: skip
    is_target = np.zeros(len(every), dtype=bool)
    is_target[links.target] = True
    return WorkGraph(
        points=every,
        links=links,
        origin=np.where(is_target, LONG_AGO, every.at),
        calls=calls,
        num_unmatched=int((~joins.is_joined).sum()),
    )


def _of_unjoined(calls: pd.DataFrame, is_end: np.ndarray) -> Links:
    """Return the transfers of calls that complete by themselves, as far as the trace shows."""
    alone = calls[~calls["is_return"].to_numpy(bool) & ~is_end[calls["end_point"].to_numpy()]]
    length = (alone["end"] - alone["begin"]).clip(lower=0).to_numpy()
    return Links.of(
        alone["begin_point"].to_numpy(), alone["end_point"].to_numpy(), length, TRANSFER
    )


def _put_together(parts: Sequence[_Part]) -> tuple[Points, Links, pd.DataFrame]:
    """Return the points, edges and calls of all parts, with numbers of points in the whole."""
    first_points = np.cumsum([0, *(len(part.points) for part in parts)])
    num_chains = [int(part.points.chain.max(initial=-1)) + 1 for part in parts]
    first_chains = np.cumsum([0, *num_chains])
    points, links, calls = [], [], []
    for part, first, chain in zip(parts, first_points, first_chains, strict=False):
        own = part.points
        points.append(
            Points(
                own.sort, own.rank, own.row, own.at, np.where(own.chain >= 0, own.chain + chain, -1)
            )
        )
        edges = part.links
        links.append(
            Links(
                edges.source + first,
                edges.target + first,
                edges.length,
                edges.sort,
                edges.is_inferred,
            )
        )
        moved = {name: part.calls[name] + first for name in ("begin_point", "end_point")}
        calls.append(part.calls.assign(**moved))
    return points[0].joined(*points[1:]), links[0].joined(*links[1:]), pd.concat(calls)


def _part_of(part: Frames) -> _Part:
    """Return the graph of the work of some ranks."""
    calls = calls_of_host(part)
    host, completions = host_points(part, calls), complete_points(calls)
    num_chains = int(host["chain"].max()) + 1 if len(host) else 0
    device = device_work(part, host, len(host) + len(completions), num_chains)
    points = Points.of(
        *(host[name].to_numpy() for name in ("sort", "rank", "row", "at", "chain"))
    ).joined(
        Points.of(*(completions[name].to_numpy() for name in ("sort", "rank", "row", "at"))),
        device.points,
    )
    completes = pd.Series(
        len(host) + np.arange(len(completions)), index=completions["row"], dtype="int64"
    )
    found = _calls_with_points(part, calls, host, completes, device)
    wakes = device.links.taken(device.links.sort == WAKE).joined(_wakes(host, calls, completes))
    others = device.links.taken(device.links.sort != WAKE)
    return _Part(points, _of_chains(host, wakes).joined(wakes, others), found)


def _wakes(host: pd.DataFrame, calls: pd.DataFrame, completes: pd.Series) -> Links:
    """Return the edges from completions to the ends of waits for them."""
    ends = host[(host["sort"] == WAIT_END) & host["row"].isin(completes.index)]
    source = completes.loc[ends["row"]].to_numpy()
    complete = calls["complete"].loc[ends["row"]].to_numpy()
    begin = _begin_of(host, ends)
    length = ends["at"].to_numpy() - np.maximum(complete, begin)
    # A later wait for a call may have begun before the call completed and ended before, too.
    fits = length >= 0
    assumed = calls["is_assumed"].loc[ends["row"]].to_numpy(bool)
    return Links.of(source[fits], ends.index.to_numpy()[fits], length[fits], WAKE, assumed[fits])


def _begin_of(host: pd.DataFrame, ends: pd.DataFrame) -> np.ndarray:
    """Return the time of the point before each of these points on its chain."""
    return host["at"].to_numpy()[np.maximum(ends.index.to_numpy() - 1, 0)]


def _of_chains(host: pd.DataFrame, wakes: Links) -> Links:
    """Return the edges along the chains of the host.

    Args:
        host: Points of the host in the order of their chains.
        wakes: Edges to the ends of waits. A wait that had nothing to wait for lasts no longer than
            its return took.
    """
    at, sort, row, chain = (host[name].to_numpy() for name in ("at", "sort", "row", "chain"))
    source = np.arange(max(len(host) - 1, 0))
    target = source + 1
    own = chain[source] == chain[target]
    source, target = source[own], target[own]
    begin_of = np.full(max(*_BEGINS, *_BEGINS.values(), int(sort.max(initial=0))) + 1, -1)
    inside = np.full(len(begin_of), HOST)
    for end, begin in _BEGINS.items():
        begin_of[end], inside[end] = begin, _INSIDE[end]
    is_inside = (sort[source] == begin_of[sort[target]]) & (row[source] == row[target])
    length = at[target] - at[source]
    shortest = np.full(len(host), np.iinfo("int64").max)
    np.minimum.at(shortest, wakes.target, np.maximum(wakes.length, 0))
    length = np.where(is_inside, np.minimum(length, shortest[target]), length)
    return Links.of(source, target, length, np.where(is_inside, inside[sort[target]], HOST))


def _calls_with_points(
    part: Frames,
    calls: pd.DataFrame,
    host: pd.DataFrame,
    completes: pd.Series,
    device: DeviceWork,
) -> pd.DataFrame:
    """Return what calls wait for, with the points at which they begin and end; see `joins`."""
    is_return = ~calls.index.isin(completes.index)
    begin_point, end_point = (
        points_of_rows(host["sort"], host["row"], sort, calls.index)
        for sort in (CALL_BEGIN, CALL_END)
    )
    of_host = calls[["rank", "begin"]].assign(
        end=calls["end"].where(is_return, calls["complete"]),
        begin_point=begin_point,
        end_point=np.where(is_return, end_point, completes.reindex(calls.index).fillna(-1)),
        is_return=is_return,
    )
    found = pd.concat([of_host, _of_kernels(part, device)])
    numbers = dict.fromkeys(["begin", "end", "begin_point", "end_point", "rank"], "int64")
    return needs_of(part).join(found.astype(numbers), how="inner")


def _of_kernels(part: Frames, device: DeviceWork) -> pd.DataFrame:
    """Return begin and end of the calls that devices run, by the points of their kernels."""
    own = device.kernels[device.kernels["call_id"] >= 0]
    found = own.groupby(["rank", "call_id"]).agg(
        begin=("begin", "min"),
        end=("end", "max"),
        begin_point=("begin_point", "first"),
        end_point=("end_point", "last"),
    )
    keys = pd.MultiIndex.from_frame(part.comm[["rank", "id"]], names=found.index.names)
    row = pd.Series(part.comm.index, index=keys, name="row")
    found = found.join(row[~row.index.duplicated()], how="inner").reset_index("rank")
    return found.set_index("row").assign(is_return=True)
