"""Matching of calls across ranks.

The members of a group issue the same collectives in the same order, so calls with equal group and
`number` form a collective. Point-to-point calls count in `seq` too, although only two ranks make
them; a collective's number does not count the transfers before it. A transfer is the nth send and
the nth recv between the same two ranks in a group, with the same tag unless the backend is NCCL,
which has no tags:

    rank 0    all_reduce 0    send to 1 (0)       all_reduce 1
    rank 1    all_reduce 0    recv from 0 (0)     all_reduce 1
    rank 2    all_reduce 0                        all_reduce 1
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pandas as pd

from commtrace.analyze.cached_per_run import (
    OF_COLLECTIVES,
    OF_RANKS,
    cached_per_run,
    of_each_call,
    of_run,
)
from commtrace.analyze.frame import Frames, texts_of
from commtrace.tracefile.collective_numbers import collective_numbers

SEND, RECV = "send", "recv"
TRANSFERS = (SEND, RECV)
NONE = -1


@cached_per_run
def is_transfer(frames: Frames) -> pd.Series:
    """Return a mask of the calls that are point-to-point."""
    return frames.comm["kind"].isin(TRANSFERS)


@of_run
def _groups_with_transfers(frames: Frames) -> frozenset[str]:
    """Return the groups in which some rank makes transfers that count in `seq`."""
    return frozenset().union(*frames.by_ranks(_with_transfers))


def _with_transfers(part: Frames) -> set[str]:
    is_counted = is_transfer(part) & (part.comm["seq"] >= 0)
    return set(part.comm.loc[is_counted, "group"].unique())


@of_each_call(OF_RANKS)
def numbers(frames: Frames) -> pd.Series:
    """Return each call's number among its group's collectives; -1 for transfers and if unknown.

    In a group with transfers, it is unknown for all calls that a rank made after calls that the
    trace has lost.
    """
    comm, transfer = frames.comm, is_transfer(frames)
    shared = _groups_with_transfers(frames)
    if not shared and not transfer.any():
        return comm["seq"].rename("number")
    groups = comm["group"].cat.codes.to_numpy().astype(np.int64)
    number = collective_numbers(
        comm["rank"].to_numpy().astype(np.int64) * (groups.max(initial=0) + 1) + groups,
        comm["seq"].to_numpy(),
        transfer.to_numpy(),
        comm["group"].isin(shared).to_numpy(),
    )
    return pd.Series(number, index=comm.index, name="number")


@of_each_call(OF_COLLECTIVES)
def partners(frames: Frames) -> pd.Series:
    """Return the row of table `comm` with the other end of each transfer; -1 if there is none."""
    comm = frames.comm
    found = pd.Series(NONE, index=comm.index, dtype="int64", name="partner")
    known = is_transfer(frames) & (comm["peer"] >= 0)
    if not known.any():
        return found
    backends = frames.groups["backend"].astype(object)
    untagged = frames.groups.loc[backends.str.contains("nccl", case=False), "name"]
    ends = _ends(comm[known], set(untagged.astype(object)))
    sends, recvs = (ends[ends["kind"] == kind] for kind in TRANSFERS)
    pairs = sends.merge(recvs, on=[*_END, "nth"], suffixes=("_s", "_r"))
    found[pairs["row_s"]] = pairs["row_r"].to_numpy()
    found[pairs["row_r"]] = pairs["row_s"].to_numpy()
    return found


_END = ["group", "source", "target", "tag"]


def _ends(transfers: pd.DataFrame, untagged: Collection[str]) -> pd.DataFrame:
    """Return row, group, kind and both ends of each transfer, and its number among equal transfers.

    Tags of groups in `untagged` do not count.
    """
    is_send = transfers["kind"] == SEND
    has_tag = ~transfers["group"].isin(untagged)
    ends = pd.DataFrame(
        {
            "group": transfers["group"].astype(object),
            "kind": transfers["kind"].astype(object),
            "source": np.where(is_send, transfers["rank"], transfers["peer"]),
            "target": np.where(is_send, transfers["peer"], transfers["rank"]),
            "tag": transfers["tag"].where(has_tag, NONE),
            "id": transfers["id"],
            "row": transfers.index,
        }
    ).sort_values("id", kind="stable")
    return ends.assign(nth=ends.groupby(["kind", *_END]).cumcount())


def group_numbers(frames: Frames) -> pd.Series:
    """Return the row in table `groups` of each call's group; -1 if it is not there.

    Unlike the codes of the categories, they are the same in all parts of a run.
    """
    group = frames.comm["group"].cat
    rows = pd.Index(frames.groups["name"].astype(object)).get_indexer(group.categories)
    return pd.Series(np.append(rows, -1)[group.codes], index=frames.comm.index)


def collective_keys(*tables: pd.DataFrame) -> list[pd.Index]:
    """Return an integer for each row's `group` and `number`; equal pairs share it in all tables.

    Groups are rows of table `groups`, as of `group_numbers`; both columns are -1 or higher.
    """
    factor = max((int(table["number"].max()) for table in tables if len(table)), default=0) + 2
    if factor < _MOST_NUMBERS:
        return [
            pd.Index(table["group"].astype("int64") * factor + table["number"]) for table in tables
        ]
    every = pd.concat([table[["group", "number"]] for table in tables])
    codes = every.groupby(["group", "number"], sort=False).ngroup().to_numpy()
    edges = np.cumsum([len(table) for table in tables])[:-1]
    return [pd.Index(part) for part in np.split(codes, edges)]


_MOST_NUMBERS = 1 << 40
"""Number of collectives of a group up to which integers are large enough for the keys."""


def mesh_axes(frames: Frames, groups: pd.Series) -> pd.Series:
    """Return the axis of the DeviceMesh that owns each of these groups; empty if none is known."""
    axes = dict(zip(frames.groups["name"], frames.groups["mesh_axis"], strict=True))
    return texts_of(groups, lambda group: str(axes.get(group, "")))


@cached_per_run
def members(frames: Frames) -> pd.DataFrame:
    """Return a row per member of each group: `group`, `rank` and `position` in it."""
    groups = frames.groups[frames.groups["ranks"].astype(object) != ""]
    lists = groups["ranks"].astype(object).str.split(",")
    table = pd.DataFrame({"group": groups["name"].astype(object), "rank": lists}).explode("rank")
    table["position"] = table.groupby("group").cumcount()
    return table.astype({"rank": "int64", "group": object}).reset_index(drop=True)
