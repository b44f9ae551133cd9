"""Arrival skew of each group's members, and the rank that arrives last most often.

The skew of a collective is the time between the arrivals of its first and its last member. Only
collectives with the calls of all members in the trace count, each once.
"""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.analysis import Analysis, addable, typed
from commtrace.analyze.arrivals import arrivals
from commtrace.analyze.frame import Frames
from commtrace.analyze.matching import is_transfer, mesh_axes, numbers
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
    Column("wait_ns", int, "ns", "total wait of all members", title="Waited"),
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
    comm, arrived = frames.comm, arrivals(frames)
    calls = pd.DataFrame(
        {
            "group": comm["group"].astype(object),
            "kind": comm["kind"].astype(object),
            "number": numbers(frames),
            "rank": comm["rank"],
            "issue": comm["issue_ns"],
            "wait": addable(arrived["wait_ns"]),
            "transfer": addable(arrived["transfer_ns"]),
        }
    )[(arrived["wait_ns"] >= 0) & ~is_transfer(frames)]
    ordered = calls.sort_values(["issue", "rank"], ascending=[False, True])
    each = ordered.groupby([*_BY, "number"], sort=False).agg(
        last=("rank", "first"),
        latest=("issue", "max"),
        earliest=("issue", "min"),
        wait=("wait", "sum"),
        transfer=("transfer", "sum"),
    )
    each["skew"] = each["latest"] - each["earliest"]
    table = each.groupby(_BY).agg(
        num_collectives=("skew", "size"),
        mean_skew_ns=("skew", "mean"),
        max_skew_ns=("skew", "max"),
        wait_ns=("wait", "sum"),
        transfer_ns=("transfer", "sum"),
    )
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
