"""Creations of groups, and waits for the store, as calls of two ranks.

So the place where these ranks part can be found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from commtrace.analyze.consistency.creation import Creation, creations
from commtrace.analyze.consistency.numbered import calls_of_ranks
from commtrace.analyze.divergence.storing import open_wait
from commtrace.analyze.run.frame import Frames

NO_GROUP = ""
"""Group of a creation, or of a wait for the store, among the calls of a rank."""


def calls_with_creations(frames: Frames, ranks: Sequence[int]) -> pd.DataFrame:
    """Return the calls of some ranks in order, as `calls_of_ranks`, with creations of groups.

    Waits for the store are included if they have not ended. Creations and waits have the group
    `NO_GROUP`, and as their number the number of creations before them. The ids are numbers of the
    rows.
    """
    calls = calls_of_ranks(frames, ranks)
    rows = []
    for rank in ranks:
        made = creations(frames).get(rank, [])
        rows += [
            _row(f"new_group of {each.members}", number, asdict(each))
            for number, each in enumerate(made)
        ]
        wait = open_wait(frames, rank)
        if wait is not None:
            rows.append(_row(f"{str(wait['text']).partition(' ')[0]} of the store", len(made), {
                "rank": rank, "at_ns": wait["at_ns"], "thread": wait["thread"],
                "file": wait["source_file"], "line": wait["source_line"],
                "function": wait["source_function"],
                "callers": str(wait["stack"]).rpartition("\n")[0],
            }))  # fmt: skip
    together = pd.concat([calls, pd.DataFrame(rows, columns=calls.columns)], ignore_index=True)
    together = together.sort_values(["rank", "issue_ns"], kind="stable", ignore_index=True)
    return together.assign(id=range(len(together))).astype(calls.dtypes)


def _row(kind: str, number: int, made: Mapping[str, Any]) -> dict[str, Any]:
    """Return a creation, or a wait for the store, as a row of calls."""
    return {
        "rank": made["rank"], "kind": kind, "group": NO_GROUP, "peer": -1, "dtype": "",
        "payload_bytes": -1, "issue_ns": made["at_ns"], "complete_ns": -1, "step": -1, "phase": "",
        "module": "", "thread": made["thread"], "source_file": made["file"],
        "source_line": made["line"], "source_function": made["function"],
        "callers": made["callers"], "number": number, "is_transfer": False,
    }  # fmt: skip


def first_unlike(frames: Frames, own: int, other: int) -> int:
    """Return the number of the first creation that two ranks made differently, or only one made."""
    sides = [creations(frames).get(rank, []) for rank in (own, other)]
    pairs = enumerate(zip(*sides, strict=False))
    least = min(map(len, sides))
    return next((number for number, (one, two) in pairs if _place(one) != _place(two)), least)


def _place(creation: Creation) -> tuple[str, str]:
    return creation.members, creation.source
