"""Changes of a graph of work: calls removed, made asynchronous, issued earlier or merged.

    remove         the call, its transfer and its waits take no time, on all of its members
    asynchronous   the rank waits where an operator first used the result
    earlier        a member arrives when its data was ready
    overlap        earlier and asynchronous; collectives of a group stay in turn
    merge          calls in a row become one, at the place of the last of them

Each takes a draft and rows of table `comm`, and returns the rows that it could change.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.replay.draft import Draft, distinct
from commtrace.analyze.replay.graph import (
    AFTER,
    ARRIVE,
    CALL_BEGIN,
    CALL_END,
    COMPLETE,
    HOST,
    ISSUE,
    KERNEL_BEGIN,
    QUEUE,
    TRANSFER,
    WAIT,
    WAIT_BEGIN,
    WAIT_END,
    WAKE,
    points_of_rows,
)

_OF_CALL = (ISSUE, WAIT)
_MAKING_NS = 5_000, 100_000
"""Time between two calls in a row: no function of Python takes less, and more is work between."""
_MOST_MAKING = 4
"""Multiple of the usual time between two calls up to which a busy machine explains it."""


def remove(draft: Draft, rows: np.ndarray) -> np.ndarray:
    """Let calls take no time; `rows` has all members of a collective or both ends of a transfer."""
    calls = draft.calls.loc[draft.calls.index.intersection(rows)]
    begin, end = calls["begin_point"].to_numpy(), calls["end_point"].to_numpy()
    into = draft.of_points(end)
    leaving = draft.of_points(begin, "source") & (draft.sort == ARRIVE)
    draft.is_kept[leaving | (into & np.isin(draft.sort, [TRANSFER, QUEUE]))] = False
    apart = np.flatnonzero(~calls["is_return"].to_numpy(bool))
    draft.add(begin[apart], end[apart], 0, TRANSFER)
    ends = points_of(draft, (CALL_END, WAIT_END), calls.index)
    inside = draft.of_points(ends)
    draft.length[inside & np.isin(draft.sort, _OF_CALL)] = 0
    draft.is_kept[inside & (draft.sort == WAKE)] = False
    made = np.flatnonzero(draft.of_points(begin) & (draft.sort == HOST))
    making = _making_ns(draft)[draft.points.rank[draft.target[made]]]
    draft.scale(made, lambda length: length - making)
    draft.length[_within_calls(draft, calls)] = 0
    draft.removed = distinct(draft.removed, calls.index.to_numpy())
    return calls.index.to_numpy()


def _making_ns(draft: Draft) -> np.ndarray:
    """Return the median time of each rank between two calls in a row.

    Torch's Python functions, and the recorder, take it for any call. Longer work is the program's.
    """
    least, most = _MAKING_NS
    is_making = (draft.length >= least) & (draft.length <= most)
    edges = np.flatnonzero(_between_calls(draft) & is_making)
    rank = draft.points.rank[draft.target[edges]]
    usual = pd.Series(draft.length[edges]).groupby(rank).median()
    num_ranks = int(draft.points.rank.max(initial=0)) + 1
    return usual.reindex(range(num_ranks)).fillna(0).clip(lower=0).to_numpy("int64")


def _between_calls(draft: Draft) -> np.ndarray:
    """Return a mask of the work of hosts between two calls in a row."""
    sort, row = draft.points.sort, draft.points.row
    between = draft.is_kept & (draft.sort == HOST) & (sort[draft.target] == CALL_BEGIN)
    between &= np.isin(sort[draft.source], (CALL_END, WAIT_END))
    return between & (row[draft.source] != row[draft.target])


def _within_calls(draft: Draft, calls: pd.DataFrame) -> np.ndarray:
    """Return a mask of the work of hosts between the parts of a call that blocks."""
    sort, row = draft.points.sort, draft.points.row
    within = draft.is_kept & (draft.sort == HOST) & (sort[draft.source] == CALL_END)
    within &= (sort[draft.target] == WAIT_BEGIN) & (row[draft.source] == row[draft.target])
    return within & np.isin(row[draft.target], calls.index[~calls["is_async"].to_numpy(bool)])


def remove_between(draft: Draft, rows: np.ndarray) -> None:
    """Let hosts do nothing between two removed calls in a row, both of them in `rows`."""
    is_own = np.isin(draft.points.row, rows)
    between = _between_calls(draft)
    draft.length[between & is_own[draft.source] & is_own[draft.target]] = 0


def asynchronous(draft: Draft, rows: np.ndarray, used: pd.Series, issue_ns: float) -> np.ndarray:
    """Let ranks wait for calls where their results were first used.

    Args:
        draft: The graph.
        rows: The calls.
        used: When an operator first used the result of each call, in ns since the start of the
            run; nan if unknown.
        issue_ns: Time to issue an asynchronous call.
    """
    calls = _hosted(draft, rows)
    used = used.reindex(calls.index)
    calls = calls[used.notna().to_numpy()]
    # Of calls that are waited for, those whose waits are known; of others, those that block.
    waits = points_of_rows(draft.points.sort, draft.points.row, WAIT_END, calls.index)
    calls = calls[(calls["is_return"].to_numpy(bool)) | (waits >= 0)]
    if calls.empty:
        return calls.index.to_numpy()
    begin = calls["begin_point"].to_numpy()
    chain = draft.points.chain[begin]
    at = np.maximum(used.loc[calls.index].to_numpy(), calls["end"].to_numpy()).astype("int64")
    uses = draft.divide(chain, at)
    _let_complete_apart(draft, calls[(uses >= 0) & calls["is_return"].to_numpy(bool)], issue_ns)
    calls = draft.calls.loc[calls.index[uses >= 0]]
    uses = uses[uses >= 0]
    into = draft.of_points(points_of(draft, (WAIT_END,), calls.index))
    wakes = np.flatnonzero(into & (draft.sort == WAKE))
    # A thread that waits takes as long to wake up, wherever it waits.
    returns = pd.Series(draft.length[wakes], index=draft.source[wakes]).groupby(level=0).max()
    draft.is_kept[wakes] = False
    draft.length[into & (draft.sort == WAIT)] = 0
    end = calls["end_point"].to_numpy()
    draft.add(end, uses, returns.reindex(end).fillna(0).to_numpy("int64"), WAKE)
    draft.calls.loc[calls.index, "use_point"] = uses
    return calls.index.to_numpy()


def _let_complete_apart(draft: Draft, calls: pd.DataFrame, issue_ns: float) -> None:
    """Let calls that block return at once, and complete at points of their own."""
    end = calls["end_point"].to_numpy()
    apart = draft.new_points(end, COMPLETE, draft.points.at[end])
    moved = np.arange(len(draft.points))
    moved[end] = apart
    into = draft.of_points(end) & np.isin(draft.sort, [TRANSFER, QUEUE])
    draft.target[into] = moved[draft.target[into]]
    behind = draft.of_points(end, "source") & np.isin(draft.sort, [QUEUE])
    draft.source[behind] = moved[draft.source[behind]]
    issues = draft.of_points(end) & (draft.sort == ISSUE)
    draft.length[issues] = np.rint(issue_ns).astype("int64")
    draft.calls.loc[calls.index, "end_point"] = apart
    draft.calls.loc[calls.index, "is_return"] = False


def run_as_kernels(draft: Draft, rows: np.ndarray) -> np.ndarray:
    """Return the calls that devices run and that are not removed."""
    calls = draft.calls.loc[draft.calls.index.intersection(rows)]
    is_run = draft.points.sort[calls["begin_point"].to_numpy()] == KERNEL_BEGIN
    return calls.index[is_run & ~calls.index.isin(draft.removed)].to_numpy()


def not_awaited(draft: Draft, users: pd.Series) -> np.ndarray:
    """Let no stream wait for kernels of calls, but for those that use their results.

    Args:
        draft: The graph.
        users: The first kernel that uses the result of each call, by rows of table `comm`; -1 if
            none is known.
    """
    end = draft.calls["end_point"].loc[users.index].to_numpy()
    draft.is_kept[draft.of_points(end, "source") & (draft.sort == AFTER)] = False
    begins = np.flatnonzero(draft.points.sort == KERNEL_BEGIN)
    point = pd.Series(begins, index=draft.points.row[begins])
    known = (users >= 0).to_numpy()
    draft.add(end[known], point.loc[users[known]].to_numpy(), 0, AFTER)
    return users.index.to_numpy()


def earlier(draft: Draft, rows: np.ndarray, ready: pd.Series) -> np.ndarray:
    """Let members arrive at calls when their data was ready.

    Args:
        draft: The graph.
        rows: The calls.
        ready: When the data of each call was ready, in ns since the start of the run; nan if
            unknown.
    """
    calls = _hosted(draft, rows)
    ready = ready.reindex(calls.index)
    calls = calls[(ready < calls["begin"]).to_numpy()]
    if calls.empty:
        return calls.index.to_numpy()
    begin = calls["begin_point"].to_numpy()
    at = ready.loc[calls.index].to_numpy().astype("int64")
    since = draft.divide(draft.points.chain[begin], at)
    calls, begin, since = calls[since >= 0], begin[since >= 0], since[since >= 0]
    moved = np.arange(len(draft.points))
    moved[begin] = since
    leaving = draft.of_points(begin, "source") & np.isin(draft.sort, [ARRIVE, TRANSFER])
    draft.source[leaving] = moved[draft.source[leaving]]
    draft.calls.loc[calls.index, "issue_point"] = since
    return calls.index.to_numpy()


def overlap(
    draft: Draft,
    rows: np.ndarray,
    *,
    ready: pd.Series | None = None,
    used: pd.Series | None = None,
    issue_ns: float,
) -> np.ndarray:
    """Issue calls when their data was ready, and wait for them where their results were used.

    Args:
        draft: The graph.
        rows: The calls.
        ready: When the data of each call was ready; without it, calls are issued where they were.
        used: When its result was first used; without it, calls are waited for where they were.
        issue_ns: Time to issue an asynchronous call.
    """
    issued = earlier(draft, rows, ready) if ready is not None else rows[:0]
    waited = asynchronous(draft, rows, used, issue_ns) if used is not None else rows[:0]
    found = distinct(issued, waited)
    _let_queue(draft, found)
    return found


def _let_queue(draft: Draft, rows: np.ndarray) -> None:
    """Let collectives of a group that no longer block be in turn on each rank, as others are."""
    num = len(draft.points)
    queues = draft.is_kept & (draft.sort == QUEUE)
    order = _queued(draft, rows, queues)
    end, changed = order["end_point"].to_numpy(), order["is_changed"].to_numpy(bool)
    of = order[["rank", "group"]].to_numpy()
    same = (of[1:] == of[:-1]).all(axis=1)
    first, behind = end[:-1][same], end[1:][same]
    before, is_member, is_changed = np.full(num, -1), np.zeros(num, bool), np.zeros(num, bool)
    before[behind], is_member[end], is_changed[end[changed]] = first, True, True
    queues &= is_member[draft.target] | is_changed[draft.source]
    stays = queues & (before[draft.target] == draft.source)
    stays &= ~is_changed[draft.source] & ~is_changed[draft.target]
    draft.is_kept[queues & ~stays] = False
    before[draft.target[stays]] = -1
    new = before[end] >= 0
    draft.add(before[end[new]], end[new], order["lasts"].to_numpy()[new], QUEUE)


def _queued(draft: Draft, rows: np.ndarray, queues: np.ndarray) -> pd.DataFrame:
    """Return the asynchronous collectives of ranks and groups with changed calls, in their turn.

    Args:
        draft: The graph.
        rows: The changed calls.
        queues: Mask of the edges between calls that are in turn.
    """
    calls, at = draft.calls, draft.points.at
    is_queued = np.zeros(len(at), dtype=bool)
    is_queued[draft.source[queues]] = is_queued[draft.target[queues]] = True
    end, use = (calls[name].to_numpy() for name in ("end_point", "use_point"))
    transfers = draft.of_points(end) & (draft.sort == TRANSFER)
    lasts = np.zeros(len(at), dtype="int64")
    np.maximum.at(lasts, draft.target[transfers], draft.length[transfers])
    table = calls[["rank", "group", "match", "end_point"]].assign(
        is_changed=calls.index.isin(rows),
        issue=at[calls["issue_point"].to_numpy()],
        use=np.where(use >= 0, at[use], at[end]),
        lasts=lasts[end],
    )
    own = table["is_changed"] | is_queued[end]
    for name in ("is_send", "is_recv", "is_return"):
        own &= ~calls[name].to_numpy(bool)
    table = table[own & ~calls.index.isin(draft.removed)]
    table = table[table.groupby(["rank", "group"])["is_changed"].transform("any")]
    # A call without a match is by itself.
    number = table["match"].where(table["match"] >= 0, -1 - np.arange(len(table)))
    bounds = {"group": "first", "issue": "max", "use": "min", "lasts": "max"}
    collectives = table.groupby(number)[[*bounds]].agg(bounds)
    table["turn"] = number.map(_turns(collectives.sort_values(["group", "issue"])))
    return table.sort_values(["rank", "group", "turn"], kind="stable")


def _turns(collectives: pd.DataFrame) -> pd.Series:
    """Return the turn of each collective; all ranks have the same order.

    Of the collectives of a group that are issued, the one whose result is used first is next.

    Args:
        collectives: `group issue use lasts` of each, by group and issue.
    """
    order: list[Any] = []
    issued: list[tuple[int, int, Any, int]] = []
    now, current = 0, None
    for place, (number, group, issue, use, lasts) in enumerate(collectives.itertuples()):
        while issued and (now < issue or group != current):
            *_, first, took = heappop(issued)
            order.append(first)
            now += took
        now = max(now, issue) if group == current else issue
        current = group
        heappush(issued, (use, place, number, lasts))
    order += [number for _, _, number, _ in sorted(issued)]
    return pd.Series(np.arange(len(order)), index=order)


def merge(
    draft: Draft, runs: list[np.ndarray], lengths: np.ndarray, is_idle: np.ndarray
) -> np.ndarray:
    """Let each sequence of calls become its last call, with a transfer of another length.

    Args:
        draft: The graph.
        runs: Rows of the calls of each sequence of a rank, in order.
        lengths: Length of the transfer of each, in ns.
        is_idle: Whether no operator ran between a call and the next, for each but the last of all
            calls. Then the host was making the next, unless that took much longer than usual.
    """
    last = np.array([run[-1] for run in runs], dtype="int64")
    every = np.concatenate(runs) if runs else last
    making = _making(draft, every[:-1][is_idle], every[1:][is_idle])
    remove(draft, np.setdiff1d(every, last))
    draft.length[making] = 0
    calls = draft.calls.loc[last]
    length_of = np.zeros(len(draft.points), dtype="int64")
    length_of[calls["end_point"].to_numpy()] = np.rint(lengths).astype("int64")
    into = draft.of_points(calls["end_point"].to_numpy())
    into &= np.isin(draft.sort, [TRANSFER, QUEUE])
    draft.length[into] = length_of[draft.target[into]]
    return last


def _making(draft: Draft, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return the edges in which hosts make a call right after another, by rows of the two."""
    between = np.flatnonzero(_between_calls(draft))
    source, target = draft.source[between], draft.target[between]
    row = draft.points.row
    is_next = pd.Series(after, before).reindex(row[source]).to_numpy() == row[target]
    usual = _making_ns(draft)[draft.points.rank[target]]
    return between[is_next & (draft.length[between] <= _MOST_MAKING * usual)]


def transfers(draft: Draft, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the edges of the transfers of calls, and the row of each."""
    calls = draft.calls.loc[draft.calls.index.intersection(rows)]
    row_of = np.full(len(draft.points), -1)
    row_of[calls["end_point"].to_numpy()] = calls.index
    edges = np.flatnonzero(
        draft.is_kept & np.isin(draft.sort, [TRANSFER, QUEUE]) & (row_of[draft.target] >= 0)
    )
    return edges, row_of[draft.target[edges]]


def transfer_ns(draft: Draft, rows: np.ndarray) -> np.ndarray:
    """Return how long the transfer of each call takes, in ns; 0 if it has none."""
    edges, of = transfers(draft, rows)
    # The shorter edge of a queued transfer is its time without the queue.
    shortest = pd.Series(draft.length[edges]).groupby(of).min()
    return shortest.reindex(rows).fillna(0).clip(lower=0).to_numpy()


def points_of(draft: Draft, sorts: tuple[int, ...], rows: pd.Index) -> np.ndarray:
    """Return the points of some sorts of calls."""
    points = np.flatnonzero(np.isin(draft.points.sort, sorts))
    return points[np.isin(draft.points.row[points], rows)]


def _hosted(draft: Draft, rows: np.ndarray) -> pd.DataFrame:
    """Return the calls that hosts make and that are not removed."""
    calls = draft.calls.loc[draft.calls.index.intersection(rows)]
    is_hosted = draft.points.sort[calls["begin_point"].to_numpy()] == CALL_BEGIN
    return calls[is_hosted & ~calls.index.isin(draft.removed)]
