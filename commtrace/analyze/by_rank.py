"""Activity of each rank, its wait for others, and the wait it causes.

Counts, sizes and times are the rank's own. A rank that comes late to a collective blocks the
others, while it is blocked least itself: `caused_wait_ns` is the wait of the other members of
those collectives to which this rank came last.
"""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.analysis import Analysis, addable, typed
from commtrace.analyze.arrivals import NEEDS_EVERYONE, arrivals
from commtrace.analyze.frame import Frames
from commtrace.analyze.measures import recorded_ns
from commtrace.schema import Column

COLUMNS = (
    Column("rank", int, "", "global rank"),
    Column("host", str, "", "host name"),
    Column("num_calls", int, "", "calls"),
    Column("payload_bytes", int, "bytes", "payload"),
    Column("wire_bytes", int, "bytes", "bytes to send under the ring algorithm"),
    Column("blocked_ns", int, "ns", "time blocked"),
    Column("share", float, "1", "time blocked, as a part of the rank's recorded time"),
    Column("wait_ns", int, "ns", "blocked before the last peer had arrived, where known"),
    Column(
        "caused_wait_ns", int, "ns", "wait of others in collectives that this rank came last to"
    ),
    Column("num_last", int, "", "collectives among all members that it came last to"),
    Column("last_share", float, "1", "those as a part of all that it made with a known wait"),
)

_SUMMED = ["payload_bytes", "wire_bytes", "blocked_ns"]


def by_rank(frames: Frames) -> pd.DataFrame:
    """Return one row per recorded rank, in order."""
    comm = frames.comm
    ranks = frames.ranks.set_index("rank")
    index = ranks.index.union(comm["rank"].unique()).sort_values()
    arrived = arrivals(frames)
    wait = addable(arrived["wait_ns"].clip(lower=0))
    late = arrived["last_rank"]
    summed = comm[_SUMMED].clip(lower=0).apply(addable)
    table = summed.groupby(comm["rank"]).sum().reindex(index, fill_value=0)
    recorded = recorded_ns(frames).reindex(index)
    table.insert(0, "rank", index)
    table.insert(1, "host", ranks["host"].astype(object).reindex(index).fillna(""))
    table.insert(2, "num_calls", comm.groupby("rank").size().reindex(index, fill_value=0))
    table["share"] = table["blocked_ns"] / recorded.where(recorded > 0).astype("float64")
    table["wait_ns"] = wait.groupby(comm["rank"]).sum().reindex(index, fill_value=0)
    table["caused_wait_ns"] = wait.groupby(late).sum().reindex(index, fill_value=0)
    met = (arrived["wait_ns"] >= 0) & comm["kind"].isin(NEEDS_EVERYONE)
    last = met & (late == comm["rank"])
    num_met, num_last = (
        each.groupby(comm["rank"]).sum().reindex(index, fill_value=0) for each in (met, last)
    )
    table["num_last"] = num_last
    table["last_share"] = num_last / num_met.where(num_met > 0).astype("float64")
    return typed(table, COLUMNS)


BY_RANK = Analysis(
    "by_rank",
    "By rank",
    "How long does each rank wait for others, and others for it?",
    by_rank,
    COLUMNS,
)
