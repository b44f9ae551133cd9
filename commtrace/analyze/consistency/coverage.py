"""How far each member of each group got, and what of it the trace has.

A rank's number proves that it made all calls before it: what lies between is lost, not missing.
Only a call after a rank's last one may never have been made.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pandas as pd

from commtrace.analyze.frame import Frames
from commtrace.analyze.matching import is_transfer, members, numbers

PROFILER, FLIGHT_RECORDER = "torch.profiler", "flight recorder"
"""What a trace that was imported from there says of itself in `imported_from`."""


@dataclass(frozen=True, slots=True, eq=False)
class Coverage:
    """`calls` are the collectives with a known number, with that; `reached` is of each member of a
    group in which somebody called: `group rank position last count`, -1 and 0 of who never did.

    `unrecorded` ranks left nothing, `cut` ones did not close their recording, `dropping` ones went
    beyond the memory bound; of `unsure` (group, rank) some collectives have no known number, of
    `unnumbered` ranks that many have none at all. Of `ringed` ranks a flight recorder has lost the
    first calls. `imported_from` names the tool that another tool's trace is of.
    """

    calls: pd.DataFrame
    reached: pd.DataFrame
    axes: dict[str, str]
    unrecorded: frozenset[int]
    cut: frozenset[int]
    dropping: frozenset[int]
    unsure: frozenset[tuple[str, int]]
    unnumbered: dict[int, int]
    ringed: frozenset[int]
    imported_from: str


def coverage(frames: Frames) -> Coverage:
    """What there is to compare."""
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
    recorded = set(ranks["rank"]) | set(frames.comm["rank"].unique())
    missing = set(frames.run.get("missing_ranks") or []) | (set(everyone["rank"]) - recorded)
    return Coverage(
        calls=calls,
        reached=reached,
        axes=dict(zip(groups["name"].astype(object), groups["mesh_axis"], strict=True)),
        unrecorded=frozenset(int(rank) for rank in missing),
        cut=frozenset(ranks.loc[~ranks["complete"], "rank"].tolist()),
        dropping=frozenset(ranks.loc[ranks["num_dropped"] > 0, "rank"].tolist()),
        unsure=frozenset(unnumbered.itertuples(index=False, name=None)),
        unnumbered=dict(Counter(without.tolist())),
        ringed=_ringed(frames),
        imported_from=str(frames.run.get("imported_from", "")),
    )


def _ringed(frames: Frames) -> frozenset[int]:
    if frames.run.get("imported_from") != FLIGHT_RECORDER:
        return frozenset()
    first = frames.comm.groupby("rank")["id"].min()
    return frozenset(first.index[first > 0].tolist())


def source_of(call: pd.Series) -> str:
    """The user's line of a call: `train.py:42`; empty where it is not known."""
    return f"{call['source_file']}:{call['source_line']}" if call["source_file"] else ""
