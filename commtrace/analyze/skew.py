"""Arrival skew of each group's members, and the rank that arrives last most often.

The skew of a collective is the time between the arrivals of its first and its last member. Only
collectives with the calls of all members in the trace count, each once.
"""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.analysis import Analysis, addable, typed
from commtrace.analyze.collectives import collectives
from commtrace.analyze.frame import Frames
from commtrace.analyze.matching import mesh_axes
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
        "mean time from the first arrival to the last one",
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
    """Return one row per group and kind, the longest total wait first."""
    each = collectives(frames)
    each = each.assign(
        **{name: frames.comm[name].cat.categories.to_numpy()[each[name]] for name in _BY},
        is_known=each["wait_ns"] >= 0,
        wait_ns=addable(each["wait_ns"].clip(lower=0)),
        transfer_ns=addable(each["transfer_ns"].clip(lower=0)),
    )
    of_group = each.groupby(_BY)
    table = of_group.agg(
        num_collectives=("skew_ns", "size"),
        mean_skew_ns=("skew_ns", "mean"),
        max_skew_ns=("skew_ns", "max"),
    )
    for name in ("wait_ns", "transfer_ns"):
        table[name] = of_group[name].sum().where(of_group["is_known"].any(), -1)
    late = each.groupby([*_BY, "last"]).size().rename("times").reset_index("last")
    last = late.sort_values(["times", "last"], ascending=[False, True]).groupby(_BY).first()
    table["last_rank"] = last["last"]
    table["last_share"] = last["times"] / table["num_collectives"]
    table = table.reset_index()
    table["mesh_axis"] = mesh_axes(frames, table["group"])
    table = table.sort_values(["wait_ns", *_BY], ascending=[False, True, True])
    return typed(table, COLUMNS)


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
