"""Progress of each member of each group, and the part of it that the trace covers.

A call's number proves that its rank made all calls before it, so a gap means lost calls, not
missing calls. Only calls after a rank's last recorded call may never have been made.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from commtrace.analyze.run.cached_per_run import of_each_part, of_run
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.known import is_fake_world
from commtrace.analyze.run.matching import RECV, is_transfer, members, numbers
from commtrace.analyze.run.sums import numbered_rows
from commtrace.tracefile import EVERY

PROFILER, FLIGHT_RECORDER, INSPECTOR, LOG = (
    "torch.profiler", "flight recorder", "NCCL Inspector", "log lines",
)  # fmt: skip
"""Values of `imported_from` in traces imported from these tools."""

OF_SOME_RANKS = (PROFILER, INSPECTOR, LOG, FLIGHT_RECORDER)
"""Tools whose files may be from any subset of the ranks."""


@dataclass(frozen=True, slots=True, eq=False)
class Coverage:
    """Progress of the members of groups, and the limits of a comparison of their calls.

    Attributes:
        reached: One row per member of each group that communicated: `group rank position last
            count`, where `last` is -1 and `count` 0 for members without a call. A fake
            world has one rank.
        axes: Mesh axis of each group.
        names: Name of each group in sentences: its mesh axis, else its description; may be empty.
        first_number: Number of the first collective of a group.
        unrecorded: Ranks without a recording.
        truncated: Ranks that did not close their recording.
        dropping: Ranks that exceeded the limits of the recording.
        unsure: (group, rank) pairs in which some collectives have no known number.
        unnumbered: By rank, how many collectives have no sequence number at all.
        open_to_all: (group, rank) pairs in which the rank receives from any source.
        calling: Ranks that made calls.
        ring_truncated: Ranks whose first calls a ring buffer has lost.
        partial: Ranks whose dump does not list all calls of its ring buffer.
        doubtful: Ranks whose missing call may be missing only in the trace: ranks in
            `ring_truncated`, and ranks in `partial` whose progress is unknown.
        is_sampled: Not every step of the program was recorded.
        imported_from: The tool that an imported trace comes from; else empty.
    """

    reached: pd.DataFrame
    axes: dict[str, str]
    names: dict[str, str]
    first_number: int
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

    @property
    def has_timed_out_only(self) -> bool:
        """True if the trace has only calls that timed out: a log of torch's watchdog.

        The progress of a rank is then in table `communicators`, not in its last call.
        """
        return self.imported_from == LOG and bool(self.partial)


@of_run
def coverage(frames: Frames) -> Coverage:
    """Return how far the calls of a run can be compared across ranks."""
    calls, removed = pd.concat(frames.by_ranks(_calls_made)), frames.removed_calls
    from_ring = frames.run.get("imported_from") == FLIGHT_RECORDER
    progress = frames.communicators[(frames.communicators["num_enqueued"] >= 0) & from_ring]
    made = _with_removed(calls.loc[calls["count"] > 0, _MADE], removed, progress)
    firsts = calls.groupby("rank")["first_id"].min()
    first_ids = dict(zip(firsts.index.tolist(), firsts.tolist(), strict=True))
    lacking = calls[calls["num_unnumbered"] > 0].groupby("rank")["num_unnumbered"].sum()
    groups, ranks = frames.groups, frames.ranks
    recorded = set(ranks["rank"]) | set(firsts.index)
    everyone = members(frames)
    everyone = everyone[everyone["group"].isin(set(made["group"]))]
    if is_fake_world(frames):
        everyone = everyone[everyone["rank"].isin(recorded)]
    reached = everyone.merge(made, on=["group", "rank"], how="left")
    reached = reached.fillna({"last": -1, "count": 0}).astype({"last": "int64", "count": "int64"})
    dropped = dict(zip(ranks["rank"], ranks["num_dropped"], strict=True))
    # A ring recording has lost only the calls before the first one kept.
    in_ring = {
        rank
        for rank in removed["rank"].unique()
        if dropped.get(rank, 0) <= first_ids.get(rank, sys.maxsize)
    }
    ring_truncated = frozenset(in_ring) | frozenset(
        rank for rank, first in first_ids.items() if from_ring and first > 0
    )
    partial = frozenset(frames.run.get("partial_dumps") or ())
    missing = set(frames.run.get("missing_ranks") or []) | (set(everyone["rank"]) - recorded)
    return Coverage(
        reached=reached,
        axes=dict(zip(groups["name"].astype(object), groups["mesh_axis"], strict=True)),
        names={
            str(name): axis or description
            for name, axis, description in groups[["name", "mesh_axis", "description"]]
            .astype(object)
            .itertuples(index=False)
        },
        first_number=int(frames.run.get("first_number", 0)),
        unrecorded=frozenset(int(rank) for rank in missing),
        truncated=frozenset(ranks.loc[~ranks["complete"], "rank"].tolist()),
        dropping=frozenset(rank for rank, num in dropped.items() if num > 0) - in_ring,
        unsure=_pairs(calls[calls["is_unsure"]]),
        unnumbered=dict(zip(lacking.index.tolist(), lacking.tolist(), strict=True)),
        open_to_all=_pairs(calls[calls["is_open_to_all"]]),
        calling=frozenset(first_ids),
        ring_truncated=ring_truncated,
        partial=partial,
        doubtful=(ring_truncated - partial) | frozenset(frames.run.get("unsure_ranks") or ()),
        is_sampled=EVERY in frames.run,
        imported_from=str(frames.run.get("imported_from", "")),
    )


def _with_removed(
    made: pd.DataFrame, removed: pd.DataFrame, progress: pd.DataFrame
) -> pd.DataFrame:
    """Return the calls made, with the calls that are not listed, which do not count as found.

    A ring has replaced the unlisted calls, or a dump states only their number.
    """
    last = pd.DataFrame(
        {
            "group": removed["group"].astype(object),
            "rank": removed["rank"],
            "last": removed["end"] - 1,
            "count": 0,
        }
    )
    stated = pd.DataFrame(
        {
            "group": progress["group"].astype(object),
            "rank": progress["rank"],
            "last": progress["num_enqueued"],
            "count": 0,
        }
    )
    every = pd.concat([each for each in (made, last, stated) if len(each)] or [made])
    return every.groupby(["group", "rank"], as_index=False).agg({"last": "max", "count": "sum"})


_MADE = ["group", "rank", "last", "count"]


def _pairs(rows: pd.DataFrame) -> frozenset[tuple[str, int]]:
    """Return group and rank of each row."""
    return frozenset(zip(rows["group"], rows["rank"].tolist(), strict=True))


@of_each_part
def _calls_made(frames: Frames) -> pd.DataFrame:
    """Return the calls of each rank of a part in each group.

    Columns are `group` and `rank`; `last` and `count` of the collectives of known number;
    `is_unsure`, `num_unnumbered` and `is_open_to_all`, see `Coverage`; and the `first_id` of all
    calls.
    """
    comm = frames.comm
    transfer, seq, number = (
        each.to_numpy() for each in (is_transfer(frames), comm["seq"], numbers(frames))
    )
    is_counted = ~transfer & (seq >= 0)
    is_numbered = is_counted & (number >= 0)
    is_open = ((comm["kind"] == RECV) & (comm["peer"] < 0)).to_numpy()
    pair, firsts = numbered_rows([comm["group"], comm["rank"]])

    def count(mask: np.ndarray) -> np.ndarray:
        return np.bincount(pair[mask], minlength=len(firsts))

    last, first_id = np.full(len(firsts), -1), np.full(len(firsts), sys.maxsize)
    np.maximum.at(last, pair[is_numbered], number[is_numbered])
    np.minimum.at(first_id, pair, comm["id"].to_numpy())
    return pd.DataFrame(
        {
            "group": comm["group"].iloc[firsts].astype(object).to_numpy(),
            "rank": comm["rank"].iloc[firsts].to_numpy(),
            "last": last,
            "count": count(is_numbered),
            "is_unsure": count(is_counted & ~is_numbered) > 0,
            "num_unnumbered": count(~transfer & (seq < 0)),
            "is_open_to_all": count(is_open) > 0,
            "first_id": first_id,
        }
    )


def source_of(call: pd.Series | Mapping[Any, Any]) -> str:
    """Return the user's line of a call: `train.py:42`; empty if unknown."""
    return f"{call['source_file']}:{call['source_line']}" if call["source_file"] else ""
