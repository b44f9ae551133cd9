"""Arrival skew of each group's members, and the rank that arrives last most often.

The skew of a collective is the time between the arrivals of its first and its last member. Only
collectives with the calls of all members in the trace count, each once.
"""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.run.analysis import Analysis, addable, typed
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import mesh_axes
from commtrace.analyze.waits.collectives import collectives, with_names
from commtrace.schema import Column

COLUMNS = (
    Column("group", str, "", "name of the process group"),
    Column("mesh_axis", str, "", "axis of the DeviceMesh that owns it", title="Axis"),
    Column("kind", str, "", "kind of the collectives"),
    Column("num_collectives", int, "", "number of collectives", title="Collectives"),
    Column(
        "mean_skew_ns",
        float,
        "ns",
        "mean time from the first arrival to the last",
        title="Mean skew",
    ),
    Column("max_skew_ns", int, "ns", "longest such time", title="Longest skew"),
    Column("wait_ns", int, "ns", "total wait of all members; -1 unknown", title="Waited"),
    Column("transfer_ns", int, "ns", "blocked time of all members after that", title="Transferred"),
    Column("last_rank", int, "", "rank that arrived last most often; the lowest in a tie"),
    Column(
        "last_share",
        float,
        "1",
        "fraction of the collectives at which it arrived last",
        title="How often",
    ),
)

_BY = ["group", "kind"]


def skew(frames: Frames) -> pd.DataFrame:
    """Return a row per group and kind, the longest total wait first."""
    of_parts, last_of_parts = zip(*frames.by_ranks(_of_collectives), strict=True)
    rows = pd.concat(of_parts)
    table = rows.drop(columns="max_skew_ns").apply(addable).groupby(_BY).sum()
    table["max_skew_ns"] = rows.groupby(_BY)["max_skew_ns"].max()
    table["mean_skew_ns"] = table["skew_ns"] / table["num_collectives"]
    for name in ("wait_ns", "transfer_ns"):
        table[name] = table[name].where(table["num_known"] > 0, -1)
    late = pd.concat(last_of_parts).groupby([*_BY, "last"]).sum().reset_index("last")
    last = late.sort_values(["times", "last"], ascending=[False, True]).groupby(_BY).first()
    table["last_rank"] = last["last"]
    table["last_share"] = last["times"] / table["num_collectives"]
    table = table.reset_index()
    table["mesh_axis"] = mesh_axes(frames, table["group"])
    table = table.sort_values(["wait_ns", *_BY], ascending=[False, True, True])
    return typed(table, COLUMNS)


def _of_collectives(frames: Frames) -> tuple[pd.DataFrame, pd.Series]:
    """Return sums by group and kind, and how often each rank arrived last, by these and `last`."""
    each = with_names(frames, collectives(frames))
    each = each.assign(
        num_known=(each["wait_ns"] >= 0).astype("int64"),
        wait_ns=addable(each["wait_ns"].clip(lower=0)),
        transfer_ns=addable(each["transfer_ns"].clip(lower=0)),
        skew=addable(each["skew_ns"]),
    )
    sums = each.groupby(_BY, observed=True).agg(
        num_collectives=("skew", "size"),
        skew_ns=("skew", "sum"),
        max_skew_ns=("skew_ns", "max"),
        wait_ns=("wait_ns", "sum"),
        transfer_ns=("transfer_ns", "sum"),
        num_known=("num_known", "sum"),
    )
    return sums, each.groupby([*_BY, "last"], observed=True).size().rename("times")


SKEW = Analysis(
    "skew",
    "Arrival skew",
    "How far apart do the members of a group arrive, and which arrives last?",
    skew,
    COLUMNS,
    topic="Who waits",
    shown=(
        "group mesh_axis kind num_collectives mean_skew_ns max_skew_ns wait_ns last_rank last_share"
    ),
)
