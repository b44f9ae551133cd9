"""Progress of each member of each group, and the part of it that the trace covers.

A call's number proves that its rank made all calls before it, so a gap means lost calls, not
missing ones. Only calls after a rank's last one may never have been made.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pandas as pd

from commtrace.analyze.frame import Frames
from commtrace.analyze.matching import is_transfer, members, numbers
from commtrace.tracefile import EVERY

PROFILER, FLIGHT_RECORDER = "torch.profiler", "flight recorder"
"""Values of `imported_from` in traces imported from these tools."""


@dataclass(frozen=True, slots=True, eq=False)
class Coverage:
    """The collectives that can be compared, and the limits of that comparison.

    Attributes:
        calls: Collectives with a known number, in an added column `number`.
        reached: One row per member of each group that communicated: `group rank position last
            count`, where `last` is -1 and `count` 0 for members without a call.
        axes: Mesh axis of each group.
        unrecorded: Ranks without a recording.
        truncated: Ranks that did not close their recording.
        dropping: Ranks that exceeded the limits of the recording.
        unsure: (group, rank) pairs in which some collectives have no known number.
        unnumbered: By rank, how many collectives have no sequence number at all.
        ring_truncated: Ranks whose first calls a flight recorder's ring buffer has lost.
        partial: Ranks whose dump does not list all calls of its ring buffer.
        doubtful: Ranks of which a call may be missing only in the trace: those in `ring_truncated`,
            and those in `partial` whose progress is unknown.
        is_sampled: Not every step of the program was recorded.
        imported_from: The tool that an imported trace comes from; else empty.
    """

    calls: pd.DataFrame
    reached: pd.DataFrame
    axes: dict[str, str]
    unrecorded: frozenset[int]
    truncated: frozenset[int]
    dropping: frozenset[int]
    unsure: frozenset[tuple[str, int]]
    unnumbered: dict[int, int]
    ring_truncated: frozenset[int]
    partial: frozenset[int]
    doubtful: frozenset[int]
    is_sampled: bool
    imported_from: str


def coverage(frames: Frames) -> Coverage:
    """Return the collectives of a run that can be compared across ranks."""
    number = numbers(frames)
    collective = ~is_transfer(frames) & (frames.comm["seq"] >= 0)
    known = collective & (number >= 0)
    unnumbered = frames.comm.loc[collective & ~known, ["group", "rank"]].drop_duplicates()
    without = frames.comm.loc[~is_transfer(frames) & (frames.comm["seq"] < 0), "rank"]
    calls = frames.comm[known].assign(number=number[known])
    made = (
        calls.groupby(["group", "rank"], observed=True)["number"].agg(["max", "count"])
    ).reset_index()
    made.columns = ["group", "rank", "last", "count"]
    made = made.astype({"group": object})
    everyone = members(frames)
    everyone = everyone[everyone["group"].isin(set(made["group"]))]
    reached = everyone.merge(made, on=["group", "rank"], how="left")
    reached = reached.fillna({"last": -1, "count": 0}).astype({"last": "int64", "count": "int64"})
    groups, ranks = frames.groups, frames.ranks
    ring_truncated = _ring_truncated(frames)
    partial = frozenset(frames.run.get("partial_dumps") or ())
    recorded = set(ranks["rank"]) | set(frames.comm["rank"].unique())
    missing = set(frames.run.get("missing_ranks") or []) | (set(everyone["rank"]) - recorded)
    return Coverage(
        calls=calls,
        reached=reached,
        axes=dict(zip(groups["name"].astype(object), groups["mesh_axis"], strict=True)),
        unrecorded=frozenset(int(rank) for rank in missing),
        truncated=frozenset(ranks.loc[~ranks["complete"], "rank"].tolist()),
        dropping=frozenset(ranks.loc[ranks["num_dropped"] > 0, "rank"].tolist()),
        unsure=frozenset(unnumbered.itertuples(index=False, name=None)),
        unnumbered=dict(Counter(without.tolist())),
        ring_truncated=ring_truncated,
        partial=partial,
        doubtful=(ring_truncated - partial) | frozenset(frames.run.get("unsure_ranks") or ()),
        is_sampled=EVERY in frames.run,
        imported_from=str(frames.run.get("imported_from", "")),
    )


def _ring_truncated(frames: Frames) -> frozenset[int]:
    if frames.run.get("imported_from") != FLIGHT_RECORDER:
        return frozenset()
    first = frames.comm.groupby("rank")["id"].min()
    return frozenset(first.index[first > 0].tolist())


def source_of(call: pd.Series) -> str:
    """Return the user's line of a call: `train.py:42`; empty if unknown."""
    return f"{call['source_file']}:{call['source_line']}" if call["source_file"] else ""
