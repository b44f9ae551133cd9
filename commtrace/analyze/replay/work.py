"""Changes of computation: work of hosts and kernels of devices, made faster, slower or even."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from commtrace.analyze.measures.covered import Covered
from commtrace.analyze.replay.draft import Draft
from commtrace.analyze.replay.graph import CALL_BEGIN, HOST, KERNEL
from commtrace.analyze.replay.joins import EVERYBODY
from commtrace.analyze.run.frame import Frames
from commtrace.schema import COMPUTE

LEAST_EXCESS = 0.05
"""Part of the other ranks' median by which a rank's work must exceed it to be a straggler's."""


_MOST_DEVIATIONS = 3.0
LEAST_STEPS = 4
"""A rank is regularly slower if its work exceeds the work of others by more than its variation
times this, in at least this many steps."""


def computing_edges(draft: Draft, run: Frames) -> np.ndarray:
    """Return the edges that are computation: kernels if a device computed, else work of hosts."""
    edges = np.flatnonzero(draft.is_kept & (draft.sort == KERNEL))
    rows = draft.points.row[draft.source[edges]]
    computes = (run.kernels["category"] == COMPUTE).reindex(rows, fill_value=False).to_numpy()
    if computes.any():
        return edges[computes]
    return np.flatnonzero(draft.is_kept & (draft.sort == HOST))


def part_of_operators(
    draft: Draft, run: Frames, edges: np.ndarray, ops: pd.DataFrame
) -> np.ndarray:
    """Return the part of each edge's time in which its host ran one of some operators.

    Args:
        draft: The graph.
        run: The run.
        edges: Work of hosts.
        ops: Rows of table `ops`.
    """
    rank = draft.points.rank[draft.target[edges]]
    begin, end = draft.points.at[draft.source[edges]], draft.points.at[draft.target[edges]]
    found = np.zeros(len(edges))
    known = ops[(ops["start_ns"] >= 0) & (ops["duration_ns"] > 0)]
    for each, own in known.groupby("rank"):
        start = own["start_ns"].to_numpy() - run.start_ns
        covered = Covered.by(start, start + own["duration_ns"].to_numpy())
        mine = np.flatnonzero((rank == each) & (end > begin))
        within = covered.within(begin[mine], end[mine])
        found[mine] = within / (end[mine] - begin[mine])
    return found


def scaled(draft: Draft, edges: np.ndarray, part: np.ndarray | float, factor: float) -> None:
    """Let a part of the time of edges take `factor` times as long."""
    draft.scale(edges, lambda length: length * (1 + np.asarray(part) * (factor - 1)))


def without_stragglers(draft: Draft, run: Frames, rows: np.ndarray | None = None) -> np.ndarray:
    """Let no rank compute longer before a collective than the median of its peers usually does.

    A rank is too slow at a place, such as the third collective of a group in each step, if the
    median of its work over all steps exceeds the median of the others by more than it varies.

    Args:
        draft: The graph.
        run: The run.
        rows: The only calls before which their ranks become faster; by default all.

    Returns:
        Rows of the calls before which a rank became faster.
    """
    calls = _collectives(draft)

    def excess(work: np.ndarray) -> np.ndarray:
        found = _excess(run, calls, work)
        return found if rows is None else np.where(calls.index.isin(rows), found, 0)

    return _with_less_work(draft, run, calls, excess)


def evened(draft: Draft, run: Frames, rows: np.ndarray) -> np.ndarray:
    """Let members compute equally long before some collectives: work moves between them.

    Args:
        draft: The graph.
        run: The run.
        rows: The calls of these collectives; all members count.

    Returns:
        Rows of the calls before which a rank has other work.
    """
    return _like_members(draft, run, rows, lambda work: work.groupby("group").transform("mean"))


def without_outliers(draft: Draft, run: Frames, rows: np.ndarray) -> np.ndarray:
    """Let no member compute longer before some collectives than the median of the others.

    Arguments and results are the same as for `evened`.
    """

    def becomes(work: pd.Series) -> pd.Series:
        of_others = _median_of_others(work).reindex(work.index)
        return work.where(work < of_others, of_others)

    return _like_members(draft, run, rows, becomes)


def _like_members(
    draft: Draft, run: Frames, rows: np.ndarray, becomes: Callable[[pd.Series], pd.Series]
) -> np.ndarray:
    """Let members compute as long before some collectives as a function returns for their work."""
    calls = _collectives(draft)
    match = calls["match"]
    chosen = match.isin(match.reindex(rows).dropna()).to_numpy()

    def excess(work: np.ndarray) -> np.ndarray:
        places = pd.MultiIndex.from_arrays(
            [match, np.zeros(len(match), dtype="int64"), calls["rank"]],
            names=["group", "place", "rank"],
        )
        return np.where(chosen, work - becomes(pd.Series(work, places)).to_numpy(), 0)

    return _with_less_work(draft, run, calls, excess)


def with_cores(draft: Draft, run: Frames, rows: np.ndarray) -> np.ndarray:
    """Let no thread wait for a core before some calls; return the rows of those that did."""
    hosted = draft.points.sort[draft.calls["begin_point"].to_numpy()] == CALL_BEGIN
    calls = draft.calls[hosted].sort_values(["rank", "begin"], kind="stable")
    delay = run.comm["run_delay_ns"].loc[calls.index].clip(lower=0)
    delay = delay.where(calls.index.isin(rows), 0).to_numpy()
    return _with_less_work(draft, run, calls, lambda work: np.minimum(delay, work))


def _collectives(draft: Draft) -> pd.DataFrame:
    """Return the collectives for which all members wait, by rank and time."""
    calls = draft.calls
    kept = calls[(calls["needs"] == EVERYBODY) & ~calls.index.isin(draft.removed)]
    return kept.sort_values(["rank", "begin"], kind="stable")


def _with_less_work(
    draft: Draft,
    run: Frames,
    calls: pd.DataFrame,
    excess_of: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """Change the work before calls, and return the rows of those that it was changed for.

    Args:
        draft: The graph.
        run: The run.
        calls: The calls, by rank and time; work counts for the next of them.
        excess_of: Takes the work before each, in ns, and returns how much less it becomes;
            below 0 if it becomes more.
    """
    edges = computing_edges(draft, run)
    if calls.empty or not len(edges):
        return calls.index.to_numpy()[:0]
    segment = _next_call(draft, calls, edges)
    has_next = segment >= 0
    work = np.bincount(segment[has_next], draft.length[edges[has_next]], minlength=len(calls))
    factor = 1 - excess_of(work) / np.where(work > 0, work, 1)
    other = has_next & (factor[segment] != 1)
    draft.scale(edges[other], lambda length: length * factor[segment[other]])
    return calls.index.to_numpy()[factor != 1]


def _next_call(draft: Draft, calls: pd.DataFrame, edges: np.ndarray) -> np.ndarray:
    """Return the place of the first call of its rank that begins at or after each edge's end."""
    rank, begin = calls["rank"].to_numpy(), calls["begin"].to_numpy()
    rank_of = draft.points.rank[draft.target[edges]].astype("int64")
    end = draft.points.at[draft.target[edges]]
    width = int(max(begin.max(initial=0), end.max(initial=0))) + 2
    place = np.searchsorted(rank * width + begin, rank_of * width + end, side="left")
    inside = np.minimum(place, len(rank) - 1)
    return np.where((place < len(rank)) & (rank[inside] == rank_of), inside, -1)


def _excess(run: Frames, calls: pd.DataFrame, work: np.ndarray) -> np.ndarray:
    """Return the time by which a rank's work before each call usually exceeds its peers', in ns."""
    step = run.comm["step"].loc[calls.index].to_numpy()
    table = pd.DataFrame({"rank": calls["rank"].to_numpy(), "group": calls["group"].to_numpy()})
    table["step"], table["work"] = step, work
    table["place"] = table.groupby(["rank", "group", "step"]).cumcount()
    if (step < 0).all():  # every call is a place of its own
        table["place"] = calls["match"].to_numpy()
    of_places = table.groupby(["group", "place", "rank"])["work"]
    usual = of_places.transform("median")
    varies = (table["work"] - usual).abs().groupby(of_places.ngroup()).transform("median")
    of_others = _median_of_others(of_places.median())
    of_peers = of_others.reindex(
        pd.MultiIndex.from_frame(table[["group", "place", "rank"]])
    ).to_numpy()
    excess = (usual - of_peers).to_numpy()
    is_slow = (excess > _MOST_DEVIATIONS * varies.to_numpy()) & (excess > LEAST_EXCESS * of_peers)
    if (step >= 0).any():
        is_slow &= of_places.transform("size").to_numpy() >= LEAST_STEPS
    return np.where(is_slow, np.minimum(excess, work), 0.0)


def _median_of_others(work: pd.Series) -> pd.Series:
    """Return the median work of the other ranks at each place; its own where there are none.

    Args:
        work: Work by `group place rank`.
    """
    ordered = work.sort_values(kind="stable").sort_index(
        level=["group", "place"], sort_remaining=False, kind="stable"
    )
    places = ordered.groupby(level=["group", "place"])
    own, num = places.cumcount().to_numpy(), places.transform("size").to_numpy()
    first, values = np.arange(len(own)) - own, ordered.to_numpy("float64")
    middle = [
        values[first + np.minimum(each + (each >= own), num - 1)]
        for each in ((num - 2) // 2, (num - 1) // 2)
    ]
    return pd.Series((middle[0] + middle[1]) / 2, index=ordered.index).where(num > 1, ordered)
