"""Progress of each member of each group, and the part of it that the trace covers.

A call's number proves that its rank made all calls before it, so a gap means lost calls, not
missing ones. Only calls after a rank's last one may never have been made.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from commtrace.analyze.cached_per_run import of_run
from commtrace.analyze.consistency.numbered import numbered
from commtrace.analyze.frame import Frames
from commtrace.analyze.matching import RECV, is_transfer, members
from commtrace.tracefile import EVERY

PROFILER, FLIGHT_RECORDER, INSPECTOR = "torch.profiler", "flight recorder", "NCCL Inspector"
"""Values of `imported_from` in traces imported from these tools."""

OF_SOME_RANKS = (PROFILER, INSPECTOR)
"""Tools whose files may be those of any ranks."""


@dataclass(frozen=True, slots=True, eq=False)
class Coverage:
    """Progress of the members of groups, and the limits of a comparison of their calls.

    Attributes:
        reached: One row per member of each group that communicated: `group rank position last
            count`, where `last` is -1 and `count` 0 for members without a call.
        axes: Mesh axis of each group.
        unrecorded: Ranks without a recording.
        truncated: Ranks that did not close their recording.
        dropping: Ranks that exceeded the limits of the recording.
        unsure: (group, rank) pairs in which some collectives have no known number.
        unnumbered: By rank, how many collectives have no sequence number at all.
        open_to_all: (group, rank) pairs in which the rank receives from any source.
        calling: Ranks that made calls.
        ring_truncated: Ranks whose first calls a ring buffer has lost.
        partial: Ranks whose dump does not list all calls of its ring buffer.
        doubtful: Ranks of which a call may be missing only in the trace: those in `ring_truncated`,
            and those in `partial` whose progress is unknown.
        is_sampled: Not every step of the program was recorded.
        imported_from: The tool that an imported trace comes from; else empty.
    """

    reached: pd.DataFrame
    axes: dict[str, str]
    unrecorded: frozenset[int]
    truncated: frozenset[int]
    dropping: frozenset[int]
    unsure: frozenset[tuple[str, int]]
    unnumbered: dict[int, int]
    open_to_all: frozenset[tuple[str, int]]
    calling: frozenset[int]
    ring_truncated: frozenset[int]
    partial: frozenset[int]
    doubtful: frozenset[int]
    is_sampled: bool
    imported_from: str


@of_run
def coverage(frames: Frames) -> Coverage:
    """Return how far the calls of a run can be compared across ranks."""
    of_parts = frames.by_ranks(_calls_made)
    removed = frames.removed_calls
    made = _with_removed(pd.concat([part.made for part in of_parts]), removed)
    first_ids = {rank: first for part in of_parts for rank, first in part.first_ids.items()}
    everyone = members(frames)
    everyone = everyone[everyone["group"].isin(set(made["group"]))]
    reached = everyone.merge(made, on=["group", "rank"], how="left")
    reached = reached.fillna({"last": -1, "count": 0}).astype({"last": "int64", "count": "int64"})
    groups, ranks = frames.groups, frames.ranks
    from_ring = frames.run.get("imported_from") == FLIGHT_RECORDER
    dropped = dict(zip(ranks["rank"], ranks["num_dropped"], strict=True))
    # Those of a recording have lost nothing but what was before the first call that was kept.
    in_ring = {
        rank
        for rank in removed["rank"].unique()
        if dropped.get(rank, 0) <= first_ids.get(rank, sys.maxsize)
    }
    ring_truncated = frozenset(in_ring) | frozenset(
        rank for rank, first in first_ids.items() if from_ring and first > 0
    )
    partial = frozenset(frames.run.get("partial_dumps") or ())
    recorded = set(ranks["rank"]) | set(first_ids)
    missing = set(frames.run.get("missing_ranks") or []) | (set(everyone["rank"]) - recorded)
    return Coverage(
        reached=reached,
        axes=dict(zip(groups["name"].astype(object), groups["mesh_axis"], strict=True)),
        unrecorded=frozenset(int(rank) for rank in missing),
        truncated=frozenset(ranks.loc[~ranks["complete"], "rank"].tolist()),
        dropping=frozenset(rank for rank, num in dropped.items() if num > 0) - in_ring,
        unsure=frozenset[tuple[str, int]]().union(*(part.unsure for part in of_parts)),
        unnumbered={rank: num for part in of_parts for rank, num in part.unnumbered.items()},
        open_to_all=frozenset[tuple[str, int]]().union(*(part.open_to_all for part in of_parts)),
        calling=frozenset(first_ids),
        ring_truncated=ring_truncated,
        partial=partial,
        doubtful=(ring_truncated - partial) | frozenset(frames.run.get("unsure_ranks") or ()),
        is_sampled=EVERY in frames.run,
        imported_from=str(frames.run.get("imported_from", "")),
    )


def _with_removed(made: pd.DataFrame, removed: pd.DataFrame) -> pd.DataFrame:
    """Return the calls made, of which a ring has replaced some, which do not count as found."""
    last = pd.DataFrame(
        {
            "group": removed["group"].astype(object),
            "rank": removed["rank"],
            "last": removed["end"] - 1,
            "count": 0,
        }
    )
    every = pd.concat([made, last]) if len(last) else made
    return every.groupby(["group", "rank"], as_index=False).agg({"last": "max", "count": "sum"})


@dataclass(frozen=True, slots=True, eq=False)
class _CallsMade:
    """Calls of some ranks.

    Attributes:
        made: Last number and count of each group and rank: `group rank last count`.
        unsure: As of `Coverage`.
        unnumbered: As of `Coverage`.
        open_to_all: As of `Coverage`.
        first_ids: Number of the first call of each rank that made any.
    """

    made: pd.DataFrame
    unsure: set[tuple[str, int]]
    unnumbered: dict[int, int]
    open_to_all: set[tuple[str, int]]
    first_ids: dict[int, int]


def _calls_made(frames: Frames) -> _CallsMade:
    comm, transfer = frames.comm, is_transfer(frames)
    unnumbered = comm[~transfer & (comm["seq"] >= 0)].index.difference(numbered(frames).index)
    unsure = comm.loc[unnumbered, ["group", "rank"]].drop_duplicates()
    from_any = comm.loc[(comm["kind"] == RECV) & (comm["peer"] < 0), ["group", "rank"]]
    of_members = numbered(frames).groupby(["group", "rank"], observed=True)["number"]
    made = pd.DataFrame({"last": of_members.max(), "count": of_members.count()}).reset_index()
    first_ids = comm.groupby("rank")["id"].min()
    return _CallsMade(
        made=made.astype({"group": object}),
        unsure=set(unsure.itertuples(index=False, name=None)),
        unnumbered=dict(Counter(comm.loc[~transfer & (comm["seq"] < 0), "rank"].tolist())),
        open_to_all=set(from_any.itertuples(index=False, name=None)),
        first_ids={int(str(rank)): first for rank, first in first_ids.items()},
    )


def source_of(call: pd.Series | Mapping[Any, Any]) -> str:
    """Return the user's line of a call: `train.py:42`; empty if unknown."""
    return f"{call['source_file']}:{call['source_line']}" if call["source_file"] else ""
