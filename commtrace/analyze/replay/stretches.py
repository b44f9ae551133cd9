"""The longest path of a run as stretches of time, each of one sort of work on one rank.

    rank 0    host work ─> in the call ┐
    rank 1                             └> transfer ─> return from the wait ─> host work

Consecutive host work is one stretch, unless a step begins or ends in it. Clocks of ranks can
disagree, so that a path comes to a rank before it leaves another; a stretch then ends where the
next one begins, and their durations still add up.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from commtrace.analyze.replay.build import recorded_replay
from commtrace.analyze.replay.graph import (
    AFTER,
    ARRIVE,
    CALL_BEGIN,
    CALL_END,
    COMPLETE,
    HOST,
    ISSUE,
    KERNEL,
    KERNEL_BEGIN,
    KERNEL_END,
    LAUNCH,
    LAUNCHING,
    MARK,
    QUEUE,
    STREAM,
    TRANSFER,
    WAIT,
    WAIT_BEGIN,
    WAIT_END,
    WAKE,
    Replay,
    WorkGraph,
)
from commtrace.analyze.replay.longest_path import longest_path
from commtrace.analyze.run.cached_per_run import of_run
from commtrace.analyze.run.frame import Frames

WORK = {
    HOST: "host work",
    ISSUE: "in the call",
    ARRIVE: "arrival",
    TRANSFER: "transfer",
    QUEUE: "transfer in turn",
    WAIT: "in the wait",
    WAKE: "return from the wait",
    LAUNCHING: "kernel launch",
    STREAM: "stream gap",
    KERNEL: "kernel",
    AFTER: "wait for a stream",
    MARK: "step mark",
}
"""Words for the time that edges take, by their sorts."""
_OF_CALLS = (CALL_BEGIN, CALL_END, COMPLETE, WAIT_BEGIN, WAIT_END)
_OF_KERNELS = (LAUNCH, KERNEL_BEGIN, KERNEL_END)
NONE = -1


@of_run
def stretches(run: Frames) -> pd.DataFrame:
    """Return the stretches of the critical path of a run as it was recorded, by time.

    Columns are as in `stretches_of`, and `step`, the step in which each stretch begins.
    """
    return _in_steps(stretches_of(recorded_replay(run)), run)


def stretches_of(replay: Replay) -> pd.DataFrame:
    """Return `begin end sort rank from_rank call kernel` of the path that ends last, by time.

    Times are in ns since the start of the run. `sort` is the sort of the edges, `from_rank` the
    rank that the path comes from, -1 if it was there before. `call` is a row of table `comm`: the
    call itself, or the next call that host work leads to. `kernel` is a row of table `kernels`.
    """
    graph, edges = replay.graph, longest_path(replay)
    points, links = graph.points, graph.links
    source, target, sort = links.source[edges], links.target[edges], links.sort[edges]
    bounds = replay.time[np.append(source[:1], target)]
    bounds = np.minimum.accumulate(bounds[::-1])[::-1]
    rank = np.where(points.rank[target] >= 0, points.rank[target], points.rank[source])
    goes_on = (sort[1:] == HOST) & (sort[:-1] == HOST) & (rank[1:] == rank[:-1])
    first = np.flatnonzero(np.append(True, ~goes_on)[: len(edges)])
    last = np.append(first[1:], len(edges))[: len(first)] - 1
    calls = _calls_of_points(graph)
    is_host, ends = sort[last] == HOST, target[last]
    of_kernel = np.isin(points.sort[ends], _OF_KERNELS)
    found = pd.DataFrame(
        {
            "begin": bounds[first],
            "end": bounds[last + 1],
            "sort": sort[last].astype("int64"),
            "rank": rank[last].astype("int64"),
            "call": np.where(is_host, _next_calls(graph, calls)[ends], calls[ends]),
            "kernel": np.where(of_kernel, points.row[ends], NONE),
        }
    )
    return hops(found[found["end"] > found["begin"]].reset_index(drop=True))


def time_by_work(replay: Replay) -> pd.Series:
    """Return the time of each sort of work on the path that ends last, in ns, the longest first."""
    found = stretches_of(replay)
    lasts = (found["end"] - found["begin"]).groupby(found["sort"].map(WORK)).sum()
    return lasts.astype("float64").sort_values(ascending=False)


def hops(found: pd.DataFrame) -> pd.DataFrame:
    """Return stretches with `from_rank`, the rank that the path hops from to each."""
    before = found["rank"].shift(1, fill_value=NONE)
    return found.assign(from_rank=before.where(before != found["rank"], NONE))


def _calls_of_points(graph: WorkGraph) -> np.ndarray:
    """Return the row in table `comm` of the call that each point belongs to; -1 if of none."""
    points, calls = graph.points, graph.calls
    found = np.where(np.isin(points.sort, _OF_CALLS), points.row, NONE)
    begins = calls["begin_point"].to_numpy()
    on_device = points.sort[begins] == KERNEL_BEGIN
    if not on_device.any():
        return found
    of_calls = [begins[on_device], calls["end_point"].to_numpy()[on_device]]
    rows = pd.Index(points.row[np.concatenate(of_calls)])
    call = pd.Series(np.tile(calls.index.to_numpy()[on_device], 2), index=rows)
    own = np.flatnonzero(np.isin(points.sort, _OF_KERNELS))
    found[own] = call[~rows.duplicated()].reindex(points.row[own]).fillna(NONE).to_numpy("int64")
    return found


def _next_calls(graph: WorkGraph, calls: np.ndarray) -> np.ndarray:
    """Return the call of each point, or else the next call on its chain; -1 if there is none."""
    chain = graph.points.chain
    order = np.lexsort([graph.points.at, chain])
    places = np.arange(len(order))
    has_call = np.where(calls[order] >= 0, places, len(order))
    following = np.minimum.accumulate(has_call[::-1])[::-1]
    is_there = following < len(order)
    following = np.where(is_there, following, 0)
    is_there &= chain[order[following]] == chain[order] if len(order) else is_there
    found = np.full(len(order), NONE)
    found[order] = np.where(is_there, calls[order[following]], NONE) if len(order) else found
    return found


def _in_steps(found: pd.DataFrame, run: Frames) -> pd.DataFrame:
    """Divide host work where steps of its rank begin and end, and add each stretch's `step`."""
    steps = run.timed_steps
    begins, ends = steps["start_ns"] - run.start_ns, steps["end_ns"] - run.start_ns
    pieces = []
    for rank, own in found.groupby("rank"):
        of_rank = (steps["rank"] == rank).to_numpy()
        edges = np.unique([*begins[of_rank], *ends[of_rank]]).astype("int64")
        divided = _divided(own, edges)
        numbers = steps["step"].to_numpy()[of_rank]
        at = divided["begin"].to_numpy()
        step = _steps_at(at, begins.to_numpy()[of_rank], ends.to_numpy()[of_rank], numbers)
        pieces.append(divided.assign(step=step))
    if not pieces:
        return found.assign(step=NONE)
    joined = pd.concat(pieces).sort_index(kind="stable").reset_index(drop=True)
    return hops(joined)


def _divided(own: pd.DataFrame, edges: np.ndarray) -> pd.DataFrame:
    """Return the stretches of a rank with host work divided at these times."""
    begin, end = own["begin"].to_numpy(), own["end"].to_numpy()
    low, high = np.searchsorted(edges, begin, "right"), np.searchsorted(edges, end, "left")
    num = np.where(own["sort"] == HOST, np.maximum(high - low, 0), 0)
    row = np.repeat(np.arange(len(own)), num + 1)
    piece = np.arange(len(row)) - np.repeat(np.cumsum(num + 1) - num - 1, num + 1)
    cuts = np.append(edges, 0)
    at = low[row] + piece
    return own.iloc[row].assign(
        begin=np.where(piece > 0, cuts[np.minimum(at - 1, len(edges))], begin[row]),
        end=np.where(piece < num[row], cuts[np.minimum(at, len(edges))], end[row]),
    )


def _steps_at(
    at: np.ndarray, begins: np.ndarray, ends: np.ndarray, numbers: Sequence[int] | np.ndarray
) -> np.ndarray:
    """Return the step that began last before each time, if it goes on; otherwise -1."""
    order = np.argsort(begins, kind="stable")
    place = np.searchsorted(begins[order], at, side="right") - 1
    if not len(order):
        return np.full(len(at), NONE)
    last = order[np.maximum(place, 0)]
    return np.where((place >= 0) & (at < ends[last]), np.asarray(numbers)[last], NONE)
