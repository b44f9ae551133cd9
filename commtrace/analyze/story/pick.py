"""Selection of one call: resolves a user's text to a row of table `comm`.

0:92       call 92 of rank 0
92         call 92 of the lowest rank that has one
longest    the call that blocked its rank longest, likewise `biggest` (`NAMED`)
"""

from __future__ import annotations

import re

import pandas as pd

from commtrace.analyze.frame import Frames
from commtrace.errors import UsageError

NAMED = {
    "longest": ("blocked_ns", "the call that blocked its rank longest"),
    "biggest": ("payload_bytes", "the call with the largest payload"),
}
"""Named calls: the column in which each has the largest value, and its description."""

_ID = re.compile(r"(?:(?P<rank>\d{1,9}):)?(?P<id>\d{1,18})")


def find_call(frames: Frames, text: str) -> pd.Series:
    """Return the row of table `comm` that `text` names.

    Raises:
        UsageError: There is no such call, or `text` cannot be parsed.
    """
    comm = frames.comm
    if text in NAMED:
        return _first_by(comm, NAMED[text][0], text)
    matched = _ID.fullmatch(text)
    if matched is None:
        raise UsageError(
            f"cannot explain {text!r}",
            why=f"a call is identified by rank and id, 0:92, by its id, or by {' or '.join(NAMED)}",
            attempt="`commtrace table TRACE calls` lists rank and id of each call",
        )
    is_named = comm["id"] == int(matched["id"])
    if matched["rank"] is not None:
        is_named &= comm["rank"] == int(matched["rank"])
    found = comm[is_named].sort_values("rank")
    if found.empty:
        raise UsageError(f"no call {text!r}", found=_available(comm, matched["rank"]))
    return found.iloc[0]


def _first_by(comm: pd.DataFrame, column: str, text: str) -> pd.Series:
    known = comm[comm[column] >= 0]
    if known.empty:
        found = f"no call with a known {column}" if len(comm) else "no calls"
        raise UsageError(f"no {text} call", found=found)
    by = [column, "rank", "id"]
    return known.sort_values(by, ascending=[False, True, True]).iloc[0]


def _available(comm: pd.DataFrame, rank: str | None) -> str:
    """Describe the ids of the rank that was asked for, or of all ranks."""
    ids = comm["id"] if rank is None else comm.loc[comm["rank"] == int(rank), "id"]
    if len(ids):
        subject = "ids" if rank is None else f"ids of rank {rank} are"
        return f"{subject} {ids.min()} to {ids.max()}"
    ranks = comm["rank"]
    return f"calls of ranks {ranks.min()} to {ranks.max()}" if len(ranks) else "no calls"
