"""Slack: how much longer calls, kernels and operators could take before the run ends later.

A call's slack is the slack of its own transfer on its rank, from the moment at which all that it
needs have arrived. Calls without slack are on a critical path; a run may have several. The slack of
an operator is the least of the host's work during it. Each is for a change of nothing else: calls
in a row share their slack.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from commtrace.analyze.replay.basis import basis_of, replayed_calls
from commtrace.analyze.replay.build import recorded_replay
from commtrace.analyze.replay.graph import HOST, ISSUE, KERNEL, KERNEL_END, TRANSFER, WAIT, Replay
from commtrace.analyze.replay.longest_path import UNKNOWN_SLACK, slack_of_edges
from commtrace.analyze.run.analysis import Analysis, typed
from commtrace.analyze.run.cached_per_run import of_run
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import mesh_axes
from commtrace.errors import UsageError
from commtrace.schema import Column

_BY = ["kind", "mesh_axis", "module", "source_file", "source_line"]
_OWN = ((TRANSFER,), (ISSUE, KERNEL))
"""Sorts of edges to its end that take a call's own time; of the first that it has."""
_ON_CHAINS = (HOST, ISSUE, WAIT)
_MOST_NS = np.iinfo("int64").max

COLUMNS = (
    Column("kind", str, "", "all_reduce, all_gather, ..."),
    Column("mesh_axis", str, "", "axis of the DeviceMesh that owns the group", title="Axis"),
    Column("module", str, "", "path of the innermost module"),
    Column("share_critical", float, "1", "calls without slack as a fraction of the calls",
           title="Critical share"),
    Column("median_slack_ns", float, "ns", "median slack of the calls", title="Median slack"),
    Column("min_slack_ns", int, "ns", "least slack of a call", title="Least slack"),
    Column("num_calls", int, "", "calls of all ranks with a known slack", title="Calls"),
    Column("num_critical", int, "", "calls without slack", title="Critical calls"),
    Column("source_file", str, "", "file of the user's line", title="Source"),
    Column("source_line", int, "", "line in that file"),
)  # fmt: skip

_OF_OPERATORS = ["op", "module", "phase"]
OP_COLUMNS = (
    Column("op", str, "", "the operator"),
    Column("module", str, "", "path of the innermost module"),
    Column("phase", str, "", "forward, backward, optimizer or other"),
    Column("share_critical", float, "1", "those without slack as a fraction of them",
           title="Critical share"),
    Column("median_slack_ns", float, "ns", "median slack", title="Median slack"),
    Column("min_slack_ns", int, "ns", "least slack", title="Least slack"),
    Column("num_ops", int, "", "operators of all ranks with a known slack", title="Operators"),
    Column("num_critical", int, "", "operators without slack", title="Critical operators"),
)  # fmt: skip


def slack(frames: Frames) -> pd.DataFrame:
    """Return a row per call site, the largest share of calls without slack first."""
    frames = basis_of(frames)
    of_calls = pd.concat(frames.by_ranks(_of_sites, slack_of_calls(frames)))
    return typed(_of_places(of_calls, _BY, "num_calls"), COLUMNS)


def _of_places(known: pd.DataFrame, by: list[str], num: str) -> pd.DataFrame:
    """Return a row per place, the largest share without slack first; `num` counts its rows."""
    is_critical = known["slack"] <= 0
    groups = known.assign(is_critical=is_critical).groupby(by)
    table = groups["slack"].agg(**{num: "size", "min_slack_ns": "min", "median_slack_ns": "median"})
    table["num_critical"] = groups["is_critical"].sum()
    table["share_critical"] = table["num_critical"] / table[num]
    order = ["share_critical", "min_slack_ns", *by]
    ascending = [name != "share_critical" for name in order]
    return table.reset_index().sort_values(order, ascending=ascending)


def _of_sites(part: Frames, known: pd.Series) -> pd.DataFrame:
    """Return the slack of the part's calls with their places."""
    rows = part.comm.index.intersection(known.index)
    comm = part.comm.loc[rows]
    places = comm[[name for name in _BY if name != "mesh_axis"]].astype(object)
    axes = mesh_axes(part, comm["group"]).astype(object)
    return places.assign(mesh_axis=axes, slack=known.loc[rows])


@of_run
def slack_of_calls(run: Frames) -> pd.Series:
    """Return the slack of each call in ns, by rows of table `comm`; calls without times lack it."""
    replay = recorded_replay(run)
    calls = replay.graph.calls
    found = _least_of_own(replay, calls["end_point"].to_numpy())
    return pd.Series(found, index=calls.index, name="slack")[found != UNKNOWN_SLACK]


def known_slack(frames: Frames) -> pd.Series:
    """Return the slack of calls in a run that is replayed as a whole; empty for any other run."""
    try:
        basis = replayed_calls(frames)
    except UsageError:
        return pd.Series(dtype="int64")
    return slack_of_calls(basis.frames) if basis.is_whole else pd.Series(dtype="int64")


@of_run
def slack_of_kernels(run: Frames) -> pd.Series:
    """Return the slack of each kernel in ns, by rows of table `kernels`."""
    replay = recorded_replay(run)
    points = replay.graph.points
    ends = np.flatnonzero(points.sort == KERNEL_END)
    found = _least_of_own(replay, ends)
    return pd.Series(found, index=points.row[ends], name="slack")[found != UNKNOWN_SLACK]


def _least_of_own(replay: Replay, ends: np.ndarray) -> np.ndarray:
    """Return the least slack of the edges that take the own time of what ends at these points."""
    links, slacks = replay.graph.links, slack_of_edges(replay)
    found = np.full(len(ends), UNKNOWN_SLACK)
    for sorts in _OWN:
        own = np.isin(links.sort, sorts) & (slacks != UNKNOWN_SLACK)
        least = np.full(len(replay.graph.points), _MOST_NS)
        np.minimum.at(least, links.target[own], slacks[own])
        takes = (found == UNKNOWN_SLACK) & (least[ends] < _MOST_NS)
        found[takes] = least[ends][takes]
    return found


def slack_of_operators(run: Frames) -> pd.Series:
    """Return the slack of each operator in ns, by rows of table `ops`, as far as it is known."""
    replay = recorded_replay(run)
    links, points, slacks = replay.graph.links, replay.graph.points, slack_of_edges(replay)
    chain = points.chain
    own = np.isin(links.sort, _ON_CHAINS) & (chain[links.source] == chain[links.target])
    own &= (slacks != UNKNOWN_SLACK) & (chain[links.target] >= 0)
    edges = pd.DataFrame(
        {
            "rank": points.rank[links.target[own]],
            "chain": chain[links.target[own]],
            "begin": replay.time[links.source[own]],
            "end": replay.time[links.target[own]],
            "slack": slacks[own],
        }
    ).sort_values(["rank", "chain", "begin", "end"], kind="stable")
    longest = edges.groupby(["rank", "chain"]).size().sort_values(kind="stable", ascending=False)
    main = {rank: chain for rank, chain in reversed(longest.index.tolist())}
    edges = edges[edges["chain"] == edges["rank"].map(main)]
    return pd.concat(run.by_ranks(_of_operators, edges)).rename("slack")


def _of_operators(part: Frames, edges: pd.DataFrame) -> pd.Series:
    """Return the least slack of the main thread's edges during each operator of the part."""
    ops = part.ops[(part.ops["start_ns"] >= 0) & (part.ops["duration_ns"] >= 0)]
    found = [pd.Series(dtype="int64")]
    for rank, own in ops.groupby("rank"):
        of_rank = edges[edges["rank"] == rank]
        if of_rank.empty:
            continue
        begin = (own["start_ns"] - part.start_ns).to_numpy()
        low = np.searchsorted(of_rank["end"], begin, "right")
        high = np.searchsorted(of_rank["begin"], begin + own["duration_ns"].to_numpy(), "left")
        known = low < high
        least = _least_between(of_rank["slack"].to_numpy(), low[known], high[known])
        found.append(pd.Series(least, index=own.index[known]))
    return pd.concat(found)


def op_slack(frames: Frames) -> pd.DataFrame:
    """Return a row per operator and module, the largest share of operators without slack first."""
    frames = basis_of(frames)
    known = slack_of_operators(frames)
    ops = frames.ops.loc[known.index, _OF_OPERATORS].astype(object).assign(slack=known)
    return typed(_of_places(ops, _OF_OPERATORS, "num_ops"), OP_COLUMNS)


def _least_between(values: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return the least of `values[low:high]` for each pair; no range is empty."""
    if not len(low):
        return np.zeros(0, dtype="int64")
    # An entry behind the last, since `reduceat` takes places of the array only.
    bounds: Sequence[int] | np.ndarray = np.stack([low, high], axis=1).ravel()
    return np.minimum.reduceat(np.append(values, _MOST_NS), bounds)[::2]


SLACK = Analysis(
    "slack",
    "Slack of calls",
    "How much longer could calls take without the run ending later?",
    slack,
    COLUMNS,
    topic="When",
    shown=(
        "kind mesh_axis module share_critical median_slack_ns min_slack_ns num_calls source_file"
    ),
)
OP_SLACK = Analysis(
    "op_slack",
    "Slack of operators",
    "How much longer could operators take without the run ending later?",
    op_slack,
    OP_COLUMNS,
    topic="When",
    shown="op module phase share_critical median_slack_ns min_slack_ns num_ops",
)
