"""Creations of groups as calls of two ranks, so that the place where they part can be found."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from commtrace.analyze.consistency.creation import Creation, creations
from commtrace.analyze.consistency.numbered import calls_of_ranks
from commtrace.analyze.run.frame import Frames

NO_GROUP = ""
"""Group of a creation among the calls of a rank."""


def calls_with_creations(frames: Frames, ranks: Sequence[int]) -> pd.DataFrame:
    """Return the calls of some ranks in order, as `calls_of_ranks`, with creations of groups.

    A creation has the group `NO_GROUP`, and as its number the number of creations before it. The
    ids are numbers of the rows.
    """
    calls = calls_of_ranks(frames, ranks)
    made = creations(frames)
    rows = [
        {
            "rank": rank, "kind": f"new_group of {each.members}", "group": NO_GROUP, "peer": -1,
            "dtype": "", "payload_bytes": -1, "issue_ns": each.at_ns, "complete_ns": -1,
            "step": -1, "phase": "", "module": "", "thread": each.thread, "source_file": each.file,
            "source_line": each.line, "source_function": each.function, "callers": each.callers,
            "number": number, "is_transfer": False,
        }
        for rank in ranks
        for number, each in enumerate(made.get(rank, ()))
    ]  # fmt: skip
    together = pd.concat([calls, pd.DataFrame(rows, columns=calls.columns)], ignore_index=True)
    together = together.sort_values(["rank", "issue_ns"], kind="stable", ignore_index=True)
    return together.assign(id=range(len(together))).astype(calls.dtypes)


def first_unlike(frames: Frames, own: int, other: int) -> int:
    """Return the number of the first creation that two ranks made differently, or only one made."""
    sides = [creations(frames).get(rank, []) for rank in (own, other)]
    pairs = enumerate(zip(*sides, strict=False))
    least = min(map(len, sides))
    return next((number for number, (one, two) in pairs if _place(one) != _place(two)), least)


def _place(creation: Creation) -> tuple[str, str]:
    return creation.members, creation.source
