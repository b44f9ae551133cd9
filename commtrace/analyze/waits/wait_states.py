"""Wait states by their names in the literature (Scalasca), and the ranks that cause them.

Each is the blocked time of a call of these kinds before a required peer arrived:

    Wait at N x N        all_reduce, all_gather, reduce_scatter, all_to_all: until all arrived
    Wait at Barrier      the same at a barrier
    Late Broadcast       broadcast, scatter: until the root arrived
    Early Reduce         reduce, gather: the root, until the last rank arrived
    Late Sender          recv: until the sender arrived
    Late Receiver        send: until the receiver arrived, while the sender was blocked

A rank is named as the cause if its share of the waits is at least 1.5 times an even share.
"""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.measures.arrivals import arrivals
from commtrace.analyze.measures.measures import recorded_ns
from commtrace.analyze.measures.wait_state import STATES
from commtrace.analyze.run.analysis import Analysis, addable, typed
from commtrace.analyze.run.cached_per_run import of_each_part
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import mesh_axes
from commtrace.analyze.waits.stragglers import stands_out
from commtrace.schema import Column

COLUMNS = (
    Column("state", str, "", "name of the wait state", title="Wait state"),
    Column("kind", str, "", "kind of the calls"),
    Column("mesh_axis", str, "", "axis of the DeviceMesh that owns their groups", title="Axis"),
    Column("num_calls", int, "", "calls of all ranks with a known wait", title="Calls"),
    Column("num_waits", int, "", "calls with a wait", title="Waits"),
    Column("wait_ns", int, "ns", "total wait of all ranks", title="Waited"),
    Column(
        "transfer_ns",
        int,
        "ns",
        "blocked time of these calls after their wait, over all ranks",
        title="Transferred",
    ),
    Column("max_wait_ns", int, "ns", "longest wait of a single call", title="Longest"),
    Column("share", float, "1", "wait as a fraction of the recorded time of all ranks"),
    Column(
        "worst_rank",
        int,
        "",
        "rank that the others waited for longest; -1 if none stands out",
    ),
    Column("worst_wait_ns", int, "ns", "total wait for that rank", title="Waited for it"),
)

_BY = ["state", "kind", "mesh_axis"]
_SUMS = ["num_calls", "num_waits", "wait_ns", "transfer_ns"]


def wait_states(frames: Frames) -> pd.DataFrame:
    """Return a row per state, kind and mesh axis, the longest wait first."""
    rows = pd.concat(frames.by_ranks(_waits)).astype({"kind": object, "mesh_axis": object})
    rows = rows.assign(
        state=rows["kind"].map(STATES), **{name: addable(rows[name]) for name in _SUMS}
    )
    table = rows.groupby(_BY)[_SUMS].sum()
    table["max_wait_ns"] = rows.groupby(_BY)["max_wait_ns"].max()
    table["share"] = table["wait_ns"] / (recorded_ns(frames).sum() or float("nan"))
    caused = rows[rows["wait_ns"] > 0].groupby([*_BY, "last"])["wait_ns"].sum().reset_index("last")
    worst = caused.sort_values(["wait_ns", "last"], ascending=[False, True]).groupby(_BY).first()
    share = worst["wait_ns"].reindex(table.index) / table["wait_ns"]
    worst = worst.reindex(table.index).where(stands_out(share, frames.num_ranks))
    table["worst_rank"] = worst["last"].fillna(-1)
    table["worst_wait_ns"] = worst["wait_ns"].fillna(0)
    ordered = table.reset_index().sort_values(["wait_ns", *_BY], ascending=[False] + [True] * 3)
    return typed(ordered, COLUMNS)


@of_each_part
def _waits(frames: Frames) -> pd.DataFrame:
    """Return the sums of calls with a known wait by kind, axis and the rank waited for."""
    comm, arrived = frames.comm, arrivals(frames)
    calls = pd.DataFrame(
        {
            "kind": comm["kind"],
            "mesh_axis": mesh_axes(frames, comm["group"]),
            "last": arrived["last_rank"],
            "wait": addable(arrived["wait_ns"]),
            "transfer": addable(arrived["transfer_ns"]),
            "waited": arrived["wait_ns"] > 0,
        }
    )
    is_chosen = (arrived["wait_ns"] >= 0) & comm["kind"].isin(STATES)
    by = calls[is_chosen].groupby(["kind", "mesh_axis", "last"], observed=True)
    return by.agg(
        num_calls=("wait", "size"),
        num_waits=("waited", "sum"),
        wait_ns=("wait", "sum"),
        transfer_ns=("transfer", "sum"),
        max_wait_ns=("wait", "max"),
    ).reset_index()


WAIT_STATES = Analysis(
    "wait_states",
    "Wait states",
    "In which wait states are ranks, and for which rank do they wait?",
    wait_states,
    COLUMNS,
    topic="Who waits",
    shown=(
        "state kind mesh_axis num_waits wait_ns transfer_ns max_wait_ns share "
        "worst_rank worst_wait_ns"
    ),
)
