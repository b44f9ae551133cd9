"""Changes of a draft: a function for each verb, which returns the rows of the changed calls.

Rows are rows of table `comm`. What a change needs of others (members of a collective, both ends of
a transfer, results whose use is unknown) is decided here; `edits` and `work` change the graph.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd

from commtrace.analyze.replay import edits, work
from commtrace.analyze.replay.draft import Draft, distinct
from commtrace.analyze.replay.prices import Prices, prices_of
from commtrace.analyze.replay.sequences import sequences
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import mesh_axes
from commtrace.analyze.run.select import hints, select
from commtrace.collective_table import busbw_factor
from commtrace.errors import UsageError
from commtrace.schema import COMM, KERNELS, OPS, Column

AXIS = Column("mesh_axis", str, "", "axis of the DeviceMesh that owns the group")
OBJECTS = "objects"


@dataclass(frozen=True, slots=True)
class Change:
    """A change.

    Attributes:
        text: As it was asked for.
        verb: Key of `VERBS`.
        factor: Factor; nan if there is none.
        amount: Latency in ns, or bandwidth in bytes/s; nan if there is none.
        where: Conditions.
        rows: Rows of table `comm` in place of conditions; None if these count.
    """

    text: str
    verb: str
    factor: float = float("nan")
    amount: float = float("nan")
    where: tuple[str, ...] = ()
    rows: np.ndarray | None = None


@dataclass
class Context:
    """A draft, and what the changes to it need.

    Attributes:
        run: The run.
        draft: The graph that is changed.
        latency_share: Place of the latency between its bounds, from 0 to 1, where it is unknown.
            With 0, nothing is assumed in favour of a change.
        is_bound: True once that part was needed, or the uses of results that are not known.
        changed: Rows of table `comm` that each change has changed.
        num_unknown: Number of calls that a change left alone since the trace lacks what it needs.
        samples: Samples of a step, as a multiple of those recorded.
    """

    run: Frames
    draft: Draft
    latency_share: float
    is_bound: bool = False
    changed: list[np.ndarray] = field(default_factory=list)
    num_unknown: int = 0
    samples: float = 1.0

    @cached_property
    def prices(self) -> Prices:
        """Latencies and bandwidths of the run's transfers."""
        return prices_of(self.run)

    @cached_property
    def shares(self) -> pd.Series:
        """Part of each call's transfer that is latency, as changes have left it; nan if unknown."""
        return self.prices.latency_shares()

    @cached_property
    def least(self) -> pd.Series:
        """The least that it can be."""
        return self.prices.least_latency_shares()


def _rows_of(given: Context, change: Change) -> np.ndarray:
    """Return the rows of table `comm` that a change is about."""
    calls = given.draft.calls.index
    if change.rows is not None:
        rows = np.intersect1d(change.rows, calls.to_numpy())
    else:
        comm = given.run.comm.assign(mesh_axis=mesh_axes(given.run, given.run.comm["group"]))
        known = (*COMM, AXIS)
        found = select(comm, known, where=change.where).index
        rows = found.intersection(calls).to_numpy()
        if not len(rows):
            raise _names_nothing(change, hints(comm, known, change.where), "call")
    left = rows[~np.isin(rows, given.draft.removed)]
    if len(rows) and not len(left):
        raise UsageError(
            f"cannot make the change {change.text!r}",
            found="only calls that a change before it removes",
            why="a call that is removed has no time that could change",
            attempt="one of the two changes",
        )
    return left


def _names_nothing(change: Change, found: Sequence[str], what: str) -> UsageError:
    return UsageError(
        f"the change {change.text!r} is of nothing in this run",
        found="; ".join(found) or f"no {what} with known times",
        attempt="commtrace table RUN calls, which lists the calls with their columns",
    )


def _with_members(given: Context, rows: np.ndarray) -> np.ndarray:
    """Return calls with all members of their collectives, and both ends of their transfers."""
    match = given.draft.calls["match"]
    numbers, calls = match.to_numpy(), match.index.to_numpy()
    is_own = np.zeros(int(numbers.max(initial=-1)) + 2, dtype=bool)
    is_own[numbers[np.isin(calls, rows)]] = True
    is_own[-1] = False  # of no match
    return distinct(rows, calls[is_own[numbers]])


def remove(given: Context, change: Change) -> np.ndarray:
    """Remove calls on all of their members."""
    removed = edits.remove(given.draft, _with_members(given, _rows_of(given, change)))
    # A collective of objects has two calls, of sizes and of data, and pickles in between.
    carries = given.run.calls_at(pd.Index(removed))["carries"]
    edits.remove_between(given.draft, removed[(carries == OBJECTS).to_numpy()])
    return removed


def asynchronous(given: Context, change: Change) -> np.ndarray:
    """Let ranks wait for calls where their results are first used."""
    rows = _rows_of(given, change)
    comm = given.run.calls_at(pd.Index(rows))
    used = _known(comm["result_used_ns"], given.run.start_ns)
    issue_ns = _time_to_issue(given.run)
    found = edits.asynchronous(given.draft, rows, used, issue_ns)
    given.num_unknown += int(used.isna().sum())
    return found


def _time_to_issue(run: Frames) -> float:
    """Return the median time to issue an asynchronous call of a run, in ns; 0 without one."""
    comm = run.comm
    issued = comm.loc[comm["is_async"] & (comm["call_ns"] >= 0), "call_ns"]
    return float(issued.median()) if len(issued) else 0.0


def earlier(given: Context, change: Change) -> np.ndarray:
    """Issue calls when their data is ready."""
    rows = _rows_of(given, change)
    comm = given.run.calls_at(pd.Index(rows))
    ready = _known(comm["data_ready_ns"], given.run.start_ns)
    given.num_unknown += int(ready.isna().sum())
    return edits.earlier(given.draft, rows, ready)


def overlap(given: Context, change: Change) -> np.ndarray:
    """Issue calls when their data is ready, and wait where their results are used."""
    return distinct(earlier(given, change), asynchronous(given, change))


def _known(instants: pd.Series, start_ns: int) -> pd.Series:
    return (instants - start_ns).where(instants >= 0).astype("float64")


def merge(given: Context, change: Change) -> np.ndarray:
    """Make calls in a row one call."""
    rows = _with_members(given, _rows_of(given, change))
    found, num_unknown = sequences(given.run, given.draft.calls, rows)
    # A result whose use is unknown may be needed before the last of the calls.
    given.is_bound |= num_unknown > 0
    if not found or (num_unknown and not given.latency_share):
        return np.zeros(0, dtype="int64")
    every = np.concatenate(found)
    times = np.nan_to_num(given.prices.of_calls["transfer_ns"].loc[every].to_numpy())
    share = _latency_shares(given, every)
    first = np.cumsum([0, *map(len, found)])[:-1]
    # Latency once, and the bytes of all of them.
    latency = np.maximum.reduceat(times * share, first)
    lengths = latency + np.add.reduceat(times * (1 - share), first)
    last = edits.merge(given.draft, found, lengths)
    given.shares[last] = np.divide(latency, lengths, out=np.ones(len(last)), where=lengths > 0)
    return every


def payload(given: Context, change: Change) -> np.ndarray:
    """Change the size of messages."""
    return _priced(given, change, latency=1.0, moved=change.factor)


def shrink(given: Context, change: Change) -> np.ndarray:
    """Let transfers take a part of their time, latency and bytes alike."""
    rows = _with_members(given, _rows_of(given, change))
    edges, of = edits.transfers(given.draft, rows)
    given.draft.scale(edges, lambda length: length * change.factor)
    return distinct(of)


def latency(given: Context, change: Change) -> np.ndarray:
    """Change the latency of transfers."""
    return _priced(given, change, latency=change.factor, moved=1.0, latency_ns=change.amount)


def bandwidth(given: Context, change: Change) -> np.ndarray:
    """Change the bandwidth of transfers."""
    moved = 1 / change.factor if change.factor else float("inf")
    return _priced(given, change, latency=1.0, moved=moved, busbw=change.amount)


def _priced(
    given: Context,
    change: Change,
    *,
    latency: float,
    moved: float,
    latency_ns: float = float("nan"),
    busbw: float = float("nan"),
) -> np.ndarray:
    """Give transfers other latencies and bandwidths, by factors or, where known, by amounts."""
    rows = _with_members(given, _rows_of(given, change))
    edges, of = edits.transfers(given.draft, rows)
    share = _latency_shares(given, of)
    lengths = given.draft.length[edges]
    of_latency = lengths * share * latency if np.isnan(latency_ns) else latency_ns
    of_bytes = lengths * (1 - share) * moved if np.isnan(busbw) else _moving(given, of, busbw)
    changed_to = of_latency + of_bytes
    given.draft.scale(edges, lambda _: changed_to)
    left = np.divide(of_latency, changed_to, out=share.copy(), where=changed_to > 0)
    given.shares[of] = left
    return distinct(of)


def _latency_shares(given: Context, rows: np.ndarray) -> np.ndarray:
    """Return which part of the transfers of calls is latency now."""
    share = given.shares[rows].to_numpy()
    given.is_bound |= bool(np.isnan(share).any())
    least = given.least[rows].to_numpy()
    return np.where(np.isnan(share), least + given.latency_share * (1 - least), share)


def _moving(given: Context, rows: np.ndarray, busbw: float) -> np.ndarray:
    """Return how long the bytes of calls take at a busbw in bytes/s, in ns."""
    own = given.prices.of_calls.loc[rows]
    factors = [
        busbw_factor(kind, int(size)) if size > 0 else 1.0
        for kind, size in zip(own["kind"], own["group_size"], strict=True)
    ]
    return own["payload_bytes"].clip(lower=0).to_numpy() * np.array(factors) / busbw * 1e9


def balance(given: Context, change: Change) -> np.ndarray:
    """Let no rank compute longer than its peers usually do."""
    if change.rows is None and not change.where:
        return work.without_stragglers(given.draft, given.run)
    rows = _rows_of(given, change)
    if change.rows is not None:  # of a finding: all work of its ranks
        calls = given.draft.calls
        rows = calls.index[calls["rank"].isin(calls["rank"].reindex(rows))].to_numpy()
    return work.without_stragglers(given.draft, given.run, rows)


def even(given: Context, change: Change) -> np.ndarray:
    """Let no rank compute longer before some collectives than their other members."""
    return work.evened(given.draft, given.run, _rows_of(given, change))


def cores(given: Context, change: Change) -> np.ndarray:
    """Let no thread wait for a core.

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
    return work.with_cores(given.draft, given.run)


def batch(given: Context, change: Change) -> np.ndarray:
    """Let steps have more samples: computation and activations grow, parameters do not."""
    draft, comm = given.draft, given.run.comm
    work.scaled(draft, work.computing_edges(draft, given.run), 1.0, change.factor)
    given.samples *= change.factor
    rows = comm.index[(comm["carries"] == "activations") & ~comm.index.isin(draft.removed)]
    if not len(rows):
        return rows.to_numpy()
    own = Change(change.text, change.verb, change.factor, rows=rows.to_numpy())
    return _priced(given, own, latency=1.0, moved=change.factor)


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
            raise _names_nothing(change, hints(ranks, [known[0]], change.where), "rank")
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
        raise _names_nothing(change, hints(table, known, change.where), "operator")
    if is_device:
        own = edges[np.isin(draft.points.row[draft.source[edges]], rows.index)]
        work.scaled(draft, own, 1.0, change.factor)
    else:
        work.scaled(draft, edges, work.part_of_operators(draft, run, edges, rows), change.factor)
    return nothing
