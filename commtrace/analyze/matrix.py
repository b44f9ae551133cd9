"""Bytes sent from each rank to each other: point-to-point as recorded, collectives as rings.

A rank sends the wire bytes of the ring algorithm (`wire_bytes`) to the next rank of the group. An
all-to-all sends an equal part to each other member; a scatter and a gather send between the root
and each member. The trace lacks the split sizes of uneven all-to-alls.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.analysis import Analysis, typed
from commtrace.analyze.frame import Frames
from commtrace.analyze.matching import SEND, TRANSFERS, members
from commtrace.collective_table import EACH, TO_ROOT, routed
from commtrace.schema import Column

COLUMNS = (
    Column("source", int, "", "global rank that sends"),
    Column("target", int, "", "global rank that receives"),
    Column("wire_bytes", float, "bytes", "bytes over the run", title="Sent"),
    Column("num_calls", int, "", "calls of the source that send them", title="Calls"),
)


def matrix(frames: Frames) -> pd.DataFrame:
    """Return one row per pair of ranks with traffic, by source and target."""
    comm = frames.comm[frames.comm["wire_bytes"] > 0]
    sums = pd.DataFrame(
        {
            "group": comm["group"].astype(object),
            "source": comm["rank"],
            "way": np.where(comm["kind"] == SEND, "peer", "ring"),
            "to": np.where(comm["kind"] == SEND, comm["peer"], -1),
            "wire_bytes": comm["wire_bytes"].astype("float64"),
        }
    )
    sums.loc[comm["kind"].isin(routed(EACH)), "way"] = "spread"
    to_root = comm["kind"].isin(routed(TO_ROOT))
    sums.loc[to_root, "way"] = "peer"
    sums.loc[to_root, "to"] = comm.loc[to_root, "root"]
    sums = sums[~comm["kind"].isin(set(TRANSFERS) - {SEND})]
    keys = ["group", "source", "way", "to"]
    sums = sums.groupby(keys)["wire_bytes"].agg(wire_bytes="sum", num_calls="size").reset_index()
    towards = members(frames)
    towards["num"] = towards.groupby("group")["rank"].transform("size")
    peers = sums[(sums["way"] == "peer") & (sums["to"] >= 0)].assign(target=lambda t: t["to"])
    ring = sums[sums["way"] == "ring"].merge(_next_in_ring(towards), on=["group", "source"])
    spread = sums[sums["way"] == "spread"].merge(towards, on="group")
    spread = spread[spread["rank"] != spread["source"]].assign(target=lambda t: t["rank"])
    spread["wire_bytes"] /= (spread["num"] - 1).clip(lower=1)
    # At least one part is left, since pandas cannot concatenate nothing.
    pairs = pd.concat([each for each in (peers, ring, spread) if len(each)] or [ring])
    by = ["source", "target"]
    table = pairs.groupby(by)[["wire_bytes", "num_calls"]].sum().reset_index()
    return typed(table.sort_values(by), COLUMNS)


def _next_in_ring(towards: pd.DataFrame) -> pd.DataFrame:
    """Return the successor of each member in its group's ring."""
    place = (towards["position"] + 1) % towards["num"]
    behind = towards[["group", "position", "rank"]].rename(columns={"rank": "target"})
    ahead = towards.assign(source=towards["rank"], position=place)[["group", "position", "source"]]
    return ahead.merge(behind, on=["group", "position"])[["group", "source", "target"]]


MATRIX = Analysis(
    "matrix",
    "Rank by rank",
    "How many bytes does each rank send to each other rank?",
    matrix,
    COLUMNS,
    topic="Between whom",
    shown="source target wire_bytes num_calls",
)
