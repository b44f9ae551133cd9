"""Collectives with the largest skew: the straggler of each, and its reason for arriving late.

The skew of a collective is the time between the arrivals of its first and its last member;
only collectives with the calls of all members in the trace count. The straggler is the member for
which others waited. Its reason is the use of time on which it spent the most beyond the median of
the other members, counted since the group's previous collective that all of them had completed or,
if there is none, since each rank's previous calls or since its recording began:

    longer compute             kernels computed longer on its device
    memory copies              copies ran longer on its device
    host late                  its device was idle until the host launched the kernel of the call
    launch delayed             its device was idle although that kernel had been launched
    behind another kernel      that kernel's stream was busy with another kernel
    longer work                it worked longer outside of communication (recordings of the host)
    no free core               it was ready to run, but no core was free (recordings of the host)
    blocked in another group   communication of another group kept it longer
    blocked in an earlier call earlier communication of the same group kept it longer

It is unknown if that is less than half of its delay beyond the median of the others' arrivals, or
for the cause in column `unknown`. The table has the 200 collectives with the largest skew.
"""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.run.analysis import Analysis, typed
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import mesh_axes
from commtrace.analyze.waits.collectives import NOBODY, collectives, with_names
from commtrace.analyze.waits.lateness import REASON_COLUMNS, lateness
from commtrace.schema import Column

COLUMNS = (
    Column("kind", str, "", "all_reduce, all_gather, ..."),
    Column("group", str, "", "name of the process group"),
    Column("mesh_axis", str, "", "axis of the DeviceMesh that owns it", title="Axis"),
    Column("number", int, "", "number of the collective in its group, from 0"),
    Column("step", int, "", "step of the last call to arrive; -1 outside of steps"),
    Column("first_rank", int, "", "rank that arrived first; the lowest in a tie"),
    Column("last_rank", int, "", "rank that arrived last; the lowest in a tie"),
    Column("skew_ns", int, "ns", "time from the first arrival to the last", title="Skew"),
    Column("wait_ns", int, "ns", "total wait of all members; -1 unknown", title="Waited"),
    Column("straggler", int, "", "rank that others waited for; -1 if nobody waited"),
    Column("call", str, "", "the straggler's call, as rank:id", title="Its call"),
    *REASON_COLUMNS,
    Column("unknown", str, "", "cause for which the reason is unknown", title="Not known because"),
)

MOST_COLLECTIVES = 200
NO_STRAGGLER = "nobody waited"


def start_skew(frames: Frames) -> pd.DataFrame:
    """Return a row per collective, the largest skew first."""
    each = _largest(pd.concat(frames.by_ranks(_of_collectives), ignore_index=True))
    known = each["late_row"].where(each["late_row"] != NOBODY).dropna().astype("int64")
    late = frames.calls_at(known)[["rank", "id"]].set_axis(known.index)
    each["straggler"] = late["rank"].reindex(each.index, fill_value=-1)
    calls = pd.Series(late["rank"].astype(str) + ":" + late["id"].astype(str), dtype=object)
    each["call"] = calls.reindex(each.index, fill_value="")
    reasons = lateness(frames).reindex(each["late_row"]).reset_index(drop=True)
    reasons["reason"] = reasons["reason"].fillna("")
    reasons["unknown"] = reasons["unknown"].where(each["late_row"] != NOBODY, NO_STRAGGLER)
    table = each.assign(mesh_axis=mesh_axes(frames, each["group"]))
    return typed(table.join(reasons), COLUMNS)


def _largest(each: pd.DataFrame) -> pd.DataFrame:
    """Return the collectives with the largest skew, numbered from 0."""
    ordered = each.sort_values(["skew_ns", "group", "number"], ascending=[False, True, True])
    return ordered.head(MOST_COLLECTIVES).reset_index(drop=True)


def _of_collectives(frames: Frames) -> pd.DataFrame:
    """Return the collectives of a part with the largest skew, and the row of the straggler."""
    each = collectives(frames)
    each = _largest(with_names(frames, each[each["skew_ns"] > 0]))
    names = {"first": "first_rank", "last": "last_rank", "straggler": "late_row"}
    step = frames.comm["step"].reindex(each["last_row"]).to_numpy()
    return each.rename(columns=names).assign(step=step)


START_SKEW = Analysis(
    "start_skew",
    "Start skew",
    "At which collectives do ranks arrive furthest apart, and why is the straggler late?",
    start_skew,
    COLUMNS,
    topic="Who waits",
    shown=(
        "kind group number straggler skew_ns reason excess_ns call wait_ns first_rank step "
        "mesh_axis unknown"
    ),
)
