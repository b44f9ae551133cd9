"""Activity of each rank, its wait for others, and the wait it causes.

Counts, sizes and times are the rank's own. A straggler blocks the other ranks and is blocked least
itself: `caused_wait_ns` is the wait of the other members of collectives at which this rank arrived
last. A sum is unknown if no call's value is known.
"""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.measures.arrivals import NEEDS_EVERYONE, arrivals
from commtrace.analyze.measures.measures import recorded_ns
from commtrace.analyze.run.analysis import Analysis, addable, typed
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.known import NOT_KNOWN, known_sums, num_unknown
from commtrace.schema import Column

COLUMNS = (
    Column("rank", int, "", "global rank"),
    Column("host", str, "", "host name"),
    Column("num_calls", int, "", "calls", title="Calls"),
    Column("payload_bytes", int, "bytes", "payload", title="Payload"),
    Column("wire_bytes", int, "bytes", "bytes to send under the ring algorithm", title="Sent"),
    Column("blocked_ns", int, "ns", "blocked time", title="Blocked"),
    Column("num_untimed", int, "", "calls of unknown blocked time", title="Not timed"),
    Column("share", float, "1", "blocked time as a fraction of the rank's recorded time"),
    Column(
        "wait_ns", int, "ns", "blocked time before the last peer arrived, if known", title="Waited"
    ),
    Column(
        "caused_wait_ns",
        int,
        "ns",
        "wait of other ranks in collectives at which this rank arrived last",
        title="Made others wait",
    ),
    Column(
        "num_last",
        int,
        "",
        "collectives among all members at which it arrived last",
        title="Last to arrive",
    ),
    Column(
        "last_share",
        float,
        "1",
        "those as a fraction of its collectives with a known wait",
        title="How often",
    ),
)

_SUMMED = ["payload_bytes", "wire_bytes", "blocked_ns"]


def by_rank(frames: Frames) -> pd.DataFrame:
    """Return a row per recorded rank, in order."""
    own, caused = zip(*frames.by_ranks(_of_part), strict=True)
    table = pd.concat(own).sort_index()
    caused_ns = addable(pd.concat(caused)).groupby(level=0).sum()
    # No wait of a rank is known if none of its collectives could be matched.
    is_unknown = ~table.index.isin(caused_ns.index) & (table["wait_ns"] < 0)
    caused_wait = caused_ns.reindex(table.index, fill_value=0).mask(is_unknown, NOT_KNOWN)
    return typed(table.assign(caused_wait_ns=caused_wait), COLUMNS)


def _of_part(frames: Frames) -> tuple[pd.DataFrame, pd.Series]:
    """Return the rows of some ranks, and the wait of these ranks by the rank that caused it."""
    comm = frames.comm
    ranks = frames.ranks.set_index("rank")
    index = ranks.index.union(comm["rank"].unique()).sort_values()
    arrived = arrivals(frames)
    wait, late = arrived["wait_ns"], arrived["last_rank"]
    table = pd.DataFrame({name: known_sums(comm[name], comm["rank"], index) for name in _SUMMED})
    recorded = recorded_ns(frames).reindex(index)
    table.insert(0, "rank", index)
    table.insert(1, "host", ranks["host"].astype(object).reindex(index).fillna(""))
    table.insert(2, "num_calls", comm.groupby("rank").size().reindex(index, fill_value=0))
    table["num_untimed"] = num_unknown(comm["blocked_ns"], comm["rank"], index)
    blocked = table["blocked_ns"].astype("float64")
    table["share"] = blocked.where(blocked >= 0) / recorded.where(recorded > 0).astype("float64")
    table["wait_ns"] = known_sums(wait, comm["rank"], index)
    is_known = wait >= 0
    caused = addable(wait[is_known]).groupby(late[is_known]).sum()
    matched = (arrived["wait_ns"] >= 0) & comm["kind"].isin(NEEDS_EVERYONE)
    last = matched & (late == comm["rank"])
    num_matched, num_last = (
        each.groupby(comm["rank"]).sum().reindex(index, fill_value=0) for each in (matched, last)
    )
    has_none = (table["num_calls"] > 0) & (num_matched == 0)
    table["num_last"] = num_last.mask(has_none, NOT_KNOWN)
    table["last_share"] = num_last / num_matched.where(num_matched > 0).astype("float64")
    return table, caused


BY_RANK = Analysis(
    "by_rank",
    "By rank",
    "How long does each rank wait for others, and they for it?",
    by_rank,
    COLUMNS,
    topic="Who waits",
    shown=(
        "rank host num_calls wire_bytes blocked_ns num_untimed share wait_ns caused_wait_ns "
        "num_last"
    ),
)
