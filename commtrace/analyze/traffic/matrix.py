"""Bytes sent from each rank to every other: point-to-point as recorded, collectives as rings.

A rank sends the wire bytes of the ring algorithm (`wire_bytes`) to the next rank of the group. An
all-to-all sends each other member its split (`input_splits`), or an equal part if the splits are
unknown; a scatter and a gather send between the root and each member.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from commtrace.analyze.run.analysis import Analysis, typed
from commtrace.analyze.run.cached_per_run import cached_per_run
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.matching import SEND, TRANSFERS, members
from commtrace.analyze.run.sums import sums_by
from commtrace.collective_table import EACH, TO_ROOT, routed
from commtrace.schema import Column

COLUMNS = (
    Column("source", int, "", "global rank that sends"),
    Column("target", int, "", "global rank that receives"),
    Column("wire_bytes", float, "bytes", "bytes over the run", title="Sent"),
    Column("num_calls", int, "", "calls of the source that send them", title="Calls"),
)


def matrix(frames: Frames) -> pd.DataFrame:
    """Return a row per pair of ranks with traffic, by source and target."""
    pairs = pd.concat(frames.by_ranks(_of_ranks))
    return typed(pairs.sort_values(["source", "target"]), COLUMNS)


_READ = ["group", "rank", "kind", "root", "peer", "wire_bytes", "input_splits"]


@cached_per_run
def _of_ranks(frames: Frames) -> pd.DataFrame:
    """Return the rows of some sources."""
    # Of the few columns that are read: copies of all of them take longer than the sums.
    comm = frames.comm.loc[frames.comm["wire_bytes"] > 0, _READ]
    is_send, to_root, is_spread, is_split = (
        (comm["kind"] == SEND).to_numpy(),
        comm["kind"].isin(routed(TO_ROOT)).to_numpy(),
        comm["kind"].isin(routed(EACH)).to_numpy(),
        (comm["input_splits"] != "").to_numpy(),
    )
    way = np.select([is_send | to_root, is_split, is_spread], [0, 3, 2], default=1)
    rows = pd.DataFrame(
        {
            "group": comm["group"],
            "source": comm["rank"],
            "way": pd.Categorical.from_codes(way, pd.Index(["peer", "ring", "spread", "split"])),
            "to": np.select([to_root, is_send], [comm["root"], comm["peer"]], default=-1),
            "wire_bytes": comm["wire_bytes"].astype("float64"),
            "num_calls": 1,
        }
    )[~comm["kind"].isin(set(TRANSFERS) - {SEND})]
    of_each = {name: rows[name] for name in ("wire_bytes", "num_calls")}
    sums = sums_by(of_each, [rows[name] for name in ("group", "source", "way", "to")])
    sums = sums.reset_index().astype({"group": object})
    towards = members(frames)
    towards = towards.assign(num=towards.groupby("group")["rank"].transform("size"))
    peers = sums[(sums["way"] == "peer") & (sums["to"] >= 0)].assign(target=lambda t: t["to"])
    ring = sums[sums["way"] == "ring"].merge(_next_in_ring(towards), on=["group", "source"])
    spread = sums[sums["way"] == "spread"].merge(towards, on="group")
    spread = spread[spread["rank"] != spread["source"]].assign(target=lambda t: t["rank"])
    spread["wire_bytes"] /= (spread["num"] - 1).clip(lower=1)
    split = _by_split(comm, towards)
    # At least one part is left, since pandas cannot concatenate nothing.
    pairs = pd.concat([each for each in (peers, ring, spread, split) if len(each)] or [ring])
    return pairs.groupby(["source", "target"])[["wire_bytes", "num_calls"]].sum().reset_index()


def _by_split(comm: pd.DataFrame, towards: pd.DataFrame) -> pd.DataFrame:
    """Return the bytes of all-to-alls with splits, by group, source and target."""
    comm = comm[comm["input_splits"] != ""]
    calls = comm.groupby(["group", "rank", "input_splits"], observed=True).size()
    calls = calls.rename("num_calls").reset_index().astype({"group": object})
    sizes = {text: text.split(",") for text in set(calls["input_splits"])}
    parts = calls.assign(wire_bytes=calls["input_splits"].astype(object).map(sizes))
    parts["position"] = [range(len(each)) for each in parts["wire_bytes"]]
    parts = parts.explode(["wire_bytes", "position"]).rename(columns={"rank": "source"})
    parts = parts.astype({"wire_bytes": "float64", "position": "int64"})
    parts = parts.merge(towards, on=["group", "position"]).rename(columns={"rank": "target"})
    parts = parts[(parts["source"] != parts["target"]) & (parts["wire_bytes"] > 0)]
    return parts.assign(wire_bytes=parts["wire_bytes"] * parts["num_calls"])


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
