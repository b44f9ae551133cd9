"""Changes of a draft: a function for each verb, which returns the rows of the changed calls.

Rows are rows of table `comm`. What a change needs of others (members of a collective, both ends of
a transfer, results whose use is unknown) is decided here; `edits` and `work` change the graph.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from commtrace.analyze.measures.data_ready import data_ready, result_used
from commtrace.analyze.replay import edits, work
from commtrace.analyze.replay.context import (
    Change,
    Context,
    NothingNamedError,
    latency_shares,
    rows_of,
    with_members,
)
from commtrace.analyze.replay.draft import distinct
from commtrace.analyze.replay.sequences import sequences
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.select import hints, select
from commtrace.errors import UsageError
from commtrace.schema import KERNELS, OPS

OBJECTS = "objects"


def remove(given: Context, change: Change) -> np.ndarray:
    """Remove calls on all of their members."""
    removed = edits.remove(given.draft, with_members(given, rows_of(given, change)))
    # A collective of objects has two calls, of sizes and of data, and pickles in between.
    carries = given.run.comm["carries"].loc[removed]
    edits.remove_between(given.draft, removed[(carries == OBJECTS).to_numpy()])
    return removed


def asynchronous(given: Context, change: Change) -> np.ndarray:
    """Let ranks wait for calls where their results are first used."""
    return _overlapped(given, rows_of(given, change), used=result_used(given.run))


def earlier(given: Context, change: Change) -> np.ndarray:
    """Issue calls when their data is ready."""
    return _overlapped(given, rows_of(given, change), ready=data_ready(given.run))


def overlap(given: Context, change: Change) -> np.ndarray:
    """Issue calls when their data is ready, and wait where their results are used."""
    ready, used = data_ready(given.run), result_used(given.run)
    return _overlapped(given, rows_of(given, change), ready=ready, used=used)


def _overlapped(given: Context, rows: np.ndarray, **times: pd.Series) -> np.ndarray:
    of_kernels = edits.run_as_kernels(given.draft, rows)
    own = {name: at.loc[rows].drop(of_kernels) for name, at in times.items()}
    given.lacking += [at.index[at.isna()].to_numpy() for at in own.values()]
    if "ready" in own:  # what devices run is issued as recorded
        given.lacking.append(of_kernels)
    hosted = np.setdiff1d(rows, of_kernels)
    found = edits.overlap(given.draft, hosted, issue_ns=time_to_issue(given.run), **own)
    return distinct(found, _not_awaited(given, of_kernels)) if "used" in own else found


def _not_awaited(given: Context, rows: np.ndarray) -> np.ndarray:
    """Let streams wait for kernels of calls where their results are first used.

    If that is unknown, the truth is between the wait that was recorded, and none.
    """
    if not len(rows):
        return rows
    comm, kernels = given.run.calls_at(pd.Index(rows)), given.run.kernels
    first = (
        kernels[kernels["op_id"] >= 0].sort_values("start_ns").drop_duplicates(["rank", "op_id"])
    )
    place = pd.Series(first.index, index=pd.MultiIndex.from_frame(first[["rank", "op_id"]]))
    users = place.reindex(pd.MultiIndex.from_frame(comm[["rank", "used_by_op_id"]])).to_numpy()
    users = pd.Series(users, index=rows)
    is_unknown = bool(users.isna().any())
    given.is_bound |= is_unknown
    if is_unknown and not given.latency_share:
        users = users.dropna()
    return edits.not_awaited(given.draft, users.fillna(-1).astype("int64"))


def time_to_issue(run: Frames) -> float:
    """Return the median time to issue an asynchronous call of a run, in ns; 0 without one."""
    comm = run.comm
    issued = comm.loc[comm["is_async"] & (comm["call_ns"] >= 0), "call_ns"]
    return float(issued.median()) if len(issued) else 0.0


def merge(given: Context, change: Change) -> np.ndarray:
    """Make calls in a row one call, or each few of them."""
    rows = with_members(given, rows_of(given, change))
    found, num_unknown = sequences(given.run, given.draft.calls, rows)
    if not np.isnan(change.amount):
        most = int(change.amount)
        pieces = [own[first : first + most] for own in found for first in range(0, len(own), most)]
        found = [piece for piece in pieces if len(piece) > 1]
    # A result whose use is unknown may be needed before the last of the calls.
    given.is_bound |= num_unknown > 0
    if not found or (num_unknown and not given.latency_share):
        return np.zeros(0, dtype="int64")
    every = np.concatenate(found)
    times = edits.transfer_ns(given.draft, every)
    share = latency_shares(given, every)
    first = np.cumsum([0, *map(len, found)])[:-1]
    # Latency once, and the bytes of all of them.
    latency = np.maximum.reduceat(times * share, first)
    lengths = latency + np.add.reduceat(times * (1 - share), first)
    last = edits.merge(given.draft, found, lengths, _are_idle(given, every, first))
    own = given.transfers
    own.loc[last, "payload_bytes"] = np.add.reduceat(
        own.loc[every, "payload_bytes"].to_numpy(), first
    )
    own.loc[last, "latency_share"] = np.divide(
        latency, lengths, out=np.ones(len(last)), where=lengths > 0
    ).astype("float32")
    return every


def _are_idle(given: Context, every: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Return whether no operator began between calls and the next, for all but the last of them.

    Args:
        given: The graph.
        every: Rows of the calls, in order.
        first: Where in `every` a sequence begins.
    """
    run, calls = given.run, given.draft.calls.loc[every]
    begin, num_before = calls["begin"].to_numpy(), np.full(len(every), -1)
    starts = run.ops["start_ns"].groupby(run.ops["rank"])
    for rank, own in calls.groupby("rank").indices.items():
        if rank in starts.indices:
            start = np.sort(starts.get_group(rank).to_numpy()) - run.start_ns
            num_before[own] = np.searchsorted(start, begin[own])
    is_idle = (num_before[1:] == num_before[:-1]) & (num_before[1:] >= 0)
    is_idle &= calls["rank"].to_numpy()[1:] == calls["rank"].to_numpy()[:-1]
    is_idle[first[1:] - 1] = False
    return is_idle


def balance(given: Context, change: Change) -> np.ndarray:
    """Let no rank compute longer than its peers usually do."""
    if change.rows is None and not change.where:
        return work.without_stragglers(given.draft, given.run)
    rows = rows_of(given, change)
    if change.rows is not None:  # of a finding: all work of its ranks
        calls = given.draft.calls
        rows = calls.index[calls["rank"].isin(calls["rank"].reindex(rows))].to_numpy()
    return work.without_stragglers(given.draft, given.run, rows)


def even(given: Context, change: Change) -> np.ndarray:
    """Let the members of some collectives compute equally long before them."""
    return work.evened(given.draft, given.run, rows_of(given, change))


def usual(given: Context, change: Change) -> np.ndarray:
    """Let no rank compute longer before some collectives than their other members."""
    return work.without_outliers(given.draft, given.run, rows_of(given, change))


def cores(given: Context, change: Change) -> np.ndarray:
    """Let no thread wait for a core: of all calls, or before those that conditions name.

    Raises:
        UsageError: The trace lacks the times without a core.
    """
    if not (given.run.comm["run_delay_ns"] >= 0).any():
        raise UsageError(
            f"cannot make the change {change.text!r}",
            found="no times without a core in the trace",
            why="a recording on Linux has them, imported traces do not",
            attempt="compute *0.9",
        )
    calls = given.draft.calls.index.to_numpy()
    rows = rows_of(given, change) if change.where else calls
    rows = np.setdiff1d(rows, distinct(*given.with_cores))
    given.with_cores.append(rows)
    return work.with_cores(given.draft, given.run, rows)


def compute(given: Context, change: Change) -> np.ndarray:
    """Change the time of computation: of all, of ranks, or of operators.

    Raises:
        UsageError: The conditions name nothing, or need operators that the trace lacks.
    """
    draft, run = given.draft, given.run
    edges, nothing = work.computing_edges(draft, run), np.zeros(0, dtype="int64")
    if not change.where:
        work.scaled(draft, edges, 1.0, change.factor)
        return nothing
    is_device = len(edges) and draft.sort[edges[0]] == work.KERNEL
    table, known = (run.kernels, KERNELS) if is_device else (run.ops, OPS)
    only_ranks = all(re.match(r"\s*rank\b", text) for text in change.where)
    if only_ranks:
        ranks = pd.DataFrame({"rank": run.ranks["rank"]})
        chosen = select(ranks, [known[0]], where=change.where)["rank"]
        own = edges[np.isin(draft.points.rank[draft.target[edges]], chosen)]
        if not len(own):
            raise NothingNamedError(
                change, hints(ranks, [known[0]], change.where), "dump RUN ranks"
            )
        work.scaled(draft, own, 1.0, change.factor)
        return nothing
    if table.empty:
        raise UsageError(
            f"cannot make the change {change.text!r}",
            found="no operators in the trace",
            why="only operators have modules and names; without them, work is of ranks",
            attempt="compute *0.5 where rank=2, or a recording with --detail op",
        )
    rows = select(table, known, where=change.where)
    if rows.empty:
        name = "kernels" if is_device else "ops"
        found = hints(table, known, change.where) or [f"no row of {name} that meets all conditions"]
        raise NothingNamedError(change, found, f"dump RUN {name}")
    if is_device:
        own = edges[np.isin(draft.points.row[draft.source[edges]], rows.index)]
        work.scaled(draft, own, 1.0, change.factor)
    else:
        work.scaled(draft, edges, work.part_of_operators(draft, run, edges, rows), change.factor)
    return nothing
