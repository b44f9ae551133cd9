"""Whether what one rank sends another one receives: as many times, and as much.

Transfers between two ranks are compared as a whole, not one by one, for tags may let them overtake
each other. Nothing is said of ranks whose transfers the trace may have lost, nor of those that
receive from whoever comes.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from commtrace.analyze.consistency.coverage import FLIGHT_RECORDER, Coverage, source_of
from commtrace.analyze.consistency.problem import Problem
from commtrace.analyze.frame import Frames
from commtrace.analyze.matching import RECV, SEND, is_transfer

_BY = ["group", "source", "target"]


def unmatched_transfers(frames: Frames, covered: Coverage) -> Iterator[Problem]:
    """One problem for each pair of ranks and group where both ends differ."""
    transfers = frames.comm[is_transfer(frames)]
    if transfers.empty:
        return
    ends = _comparable(transfers, covered)
    sums = ends.groupby([*_BY, "kind"], observed=True).agg(
        num=("payload_bytes", "size"), size=("payload_bytes", "sum"), row=("row", "max")
    )
    both = pd.MultiIndex.from_product([["num", "size", "row"], [SEND, RECV]])
    wide = pd.DataFrame(sums.unstack("kind")).reindex(columns=both)
    wide = wide.fillna({("row", SEND): -1, ("row", RECV): -1}).fillna(0).astype("int64")
    for column in ("num", "size"):
        uneven = wide[wide[column, SEND] != wide[column, RECV]]
        bad = uneven
        if covered.imported_from and column == "num":  # what is over by now has met its other end
            bad = uneven[~_is_over(frames, uneven)]
        for (group, source, target), row in bad.iterrows():  # type: ignore[misc]
            yield _problem(frames, covered, (group, source, target), row, column)
        wide = wide.drop(uneven.index)


def _comparable(transfers: pd.DataFrame, covered: Coverage) -> pd.DataFrame:
    is_send = transfers["kind"] == SEND
    ends = pd.DataFrame(
        {
            "group": transfers["group"].astype(object),
            "kind": transfers["kind"].astype(object),
            "source": transfers["rank"].where(is_send, transfers["peer"]),
            "target": transfers["peer"].where(is_send, transfers["rank"]),
            "payload_bytes": transfers["payload_bytes"].clip(lower=0),
            "row": transfers.index,
        }
    )
    open_to_all = ends[~is_send & (transfers["peer"] < 0)]
    is_open = pd.MultiIndex.from_frame(ends[["group", "target"]]).isin(
        pd.MultiIndex.from_frame(open_to_all[["group", "target"]])
    )
    from_dumps = covered.imported_from == FLIGHT_RECORDER  # what they have last is certain
    cut = covered.ringed if from_dumps else covered.cut
    unsure = covered.unrecorded | cut | covered.dropping
    known = ~(ends["source"].isin(unsure) | ends["target"].isin(unsure))
    return ends[known & ~is_open & (transfers["peer"] >= 0)]


def _is_over(frames: Frames, uneven: pd.DataFrame) -> pd.Series:
    """Of pairs with more transfers at one end, whether the last one there has completed."""
    more_sent = uneven["num", SEND] > uneven["num", RECV]
    rows = uneven["row", SEND].where(more_sent, uneven["row", RECV])
    complete = frames.comm["complete_ns"].reindex(rows) >= 0
    return pd.Series(complete.to_numpy(), index=uneven.index, dtype=bool)


def _problem(
    frames: Frames, covered: Coverage, way: tuple[str, int, int], row: pd.Series, column: str
) -> Problem:
    group, source, target = way
    sent, received = row[column, SEND], row[column, RECV]
    what = "transfers" if column == "num" else "bytes"
    call = frames.comm.loc[max(row["row", SEND], row["row", RECV])]
    found = f"{sent} {what} sent, {received} received"
    return Problem(
        problem="transfer",
        is_fault=True,
        group=group,
        mesh_axis=covered.axes.get(group, ""),
        ranks=f"{min(source, target)},{max(source, target)}",
        found=found,
        source=source_of(call),
        explanation=f"From rank {source} to rank {target} on group {group}: {found}.",
        at_ns=int(call["issue_ns"]),
    )
