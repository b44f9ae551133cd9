"""Comparison of calls that a ring has replaced, by their hashes (see `call_hash`)."""

from __future__ import annotations

import pandas as pd

from commtrace.analyze.run.frame import Frames
from commtrace.call_hash import PLACE, added, hash_of_call, hash_of_place


def made_alike(
    frames: Frames, calls: pd.DataFrame, ranks: tuple[int, int], group: str
) -> tuple[bool | None, int]:
    """Return whether two ranks made their first calls in a group at the same lines; None unknown.

    The first calls precede the first that both recordings have; their number comes second.

    Args:
        frames: The run.
        calls: Calls of both ranks, as `calls_of_ranks` returns them.
        ranks: The two ranks.
        group: The process group.
    """
    removed = frames.removed_calls
    removed = removed[(removed["group"] == group) & removed["rank"].isin(ranks)]
    if removed.empty:
        return None, 0
    end = int(removed["end"].max())
    found = [_hash_until(removed[removed["rank"] == rank], calls, rank, group, end)
             for rank in ranks]  # fmt: skip
    return (None if None in found else found[0] == found[1]), end


def _hash_until(
    removed: pd.DataFrame, calls: pd.DataFrame, rank: int, group: str, end: int
) -> int | None:
    """Return the hash of the calls below the number `end`; None if any of them is unknown."""
    is_own = (calls["rank"] == rank) & (calls["group"] == group) & ~calls["is_transfer"]
    own = calls[is_own & calls["number"].between(0, end - 1)]
    if int(removed["num_calls"].sum()) + len(own) != end:
        return None
    total = int(removed["hash"].sum())
    for *place, number in own[[*PLACE, "number"]].itertuples(index=False, name=None):
        total = added(total, hash_of_call(hash_of_place(tuple(place)), number))
    return total
