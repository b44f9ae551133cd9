"""The two sides of a fault: ranks that left the common order, and ranks to compare them with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pandas as pd

from commtrace.analyze.consistency.disagreements import FIELDS, KIND
from commtrace.analyze.consistency.numbered import calls_of
from commtrace.analyze.run.frame import Frames

_SIZE = "payload_bytes"
_UNKNOWN = -1
Sides = tuple[list[int], list[int]]


def sides_of(
    frames: Frames, fault: Mapping[str, object], members: Sequence[int], blamed: Sequence[int]
) -> list[Sides]:
    """Return pairs of sides; the ranks of a side made the same call, or none.

    Args:
        frames: The run.
        fault: A row of table `consistency`.
        members: Recorded members of its group.
        blamed: The blamed members; empty if unknown.

    Returns:
        For each differing call, its ranks, and the ranks to compare them with: the members that are
        not blamed; without blame, the largest side, or the first member if all calls are equal.
    """
    by_call: dict[object, list[int]] = {}
    calls = _made(frames, fault)
    is_about_values = fault["problem"] in FIELDS and not blamed
    for rank in members:
        made = calls.get(rank)
        if not is_about_values or made not in (None, "", _UNKNOWN):  # unknown equals everything
            by_call.setdefault(made, []).append(rank)
    sides = [*by_call.values()]
    if blamed:
        others = [rank for rank in members if rank not in blamed]
        own = [[rank for rank in side if rank in blamed] for side in sides]
    elif len(sides) > 1:
        others = max(sides, key=len)
        own = [side for side in sides if side is not others]
    else:
        others, own = [*members[:1]], [[*members[1:]]]
    return [(side, others) for side in own if side and others]


def _made(frames: Frames, fault: Mapping[str, object]) -> dict[int, object]:
    """Return, by rank, the property of its call that the fault is about."""
    problem = str(fault["problem"])
    column = _SIZE if problem == "size" else problem if problem in FIELDS else KIND
    calls = calls_of(frames, {(str(fault["group"]), int(str(fault["number"])))})
    return dict(zip(calls["rank"].tolist(), calls[column].astype(object), strict=True))


def sides_of_cycle(hanging: pd.DataFrame, cycle: Sequence[int]) -> list[Sides]:
    """Return the rank of a deadlock cycle in the call with the fewest ranks, and the others."""
    calls = zip(hanging["group"].astype(object), hanging["number"], strict=True)
    place = dict(zip(hanging["rank"], calls, strict=True))
    num_there = Counter(place.values())
    own = min(reversed(cycle), key=lambda rank: num_there[place.get(rank, ("", _UNKNOWN))])
    others = [rank for rank in cycle if rank != own]
    return [([own], others)] if others else []


def labels_of(frames: Frames, own: int, other: int) -> dict[str, str]:
    """Return a label of each group, equal for corresponding groups of both ranks."""
    labels = {}
    for row in frames.groups.to_dict("records"):
        ranks = {int(rank) for rank in str(row["ranks"]).split(",") if rank}
        corresponding = str(row["mesh_axis"] or f"a group of {row['size']} ranks")
        labels[str(row["name"])] = str(row["name"]) if {own, other} <= ranks else corresponding
    return labels
