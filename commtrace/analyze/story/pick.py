"""Selection of a call: resolves a user's text to a row of table `comm`.

0:92       call 92 of rank 0
92         call 92 of the lowest rank that has it
longest    the call that blocked its rank longest, likewise `biggest` (`NAMED`)
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd

from commtrace.analyze.measures.census import census
from commtrace.analyze.run.frame import Frames
from commtrace.errors import UsageError

NAMED = {
    "longest": (
        "blocked_ns",
        "the call that blocked its rank longest; if none is known, the first in flight",
    ),
    "biggest": ("payload_bytes", "the call with the largest payload"),
}
"""Named calls: the column in which each has the largest value, and its description."""

_ID = re.compile(r"(?:(?P<rank>\d{1,9}):)?(?P<id>\d{1,18})")


def find_call(frames: Frames, text: str) -> pd.Series:
    """Return the row of table `comm` that `text` names.

    Raises:
        UsageError: There is no such call, or `text` cannot be parsed.
    """
    if text in NAMED:
        return _first_by(frames, NAMED[text][0], text)
    matched = _ID.fullmatch(text)
    if matched is None:
        raise UsageError(
            f"cannot explain {text!r}",
            why=f"a call is identified by rank and id, 0:92, by its id, or by {' or '.join(NAMED)}",
            attempt="`commtrace table TRACE calls` lists rank and id of each call",
        )
    rank = -1 if matched["rank"] is None else int(matched["rank"])
    found = _first(frames.by_ranks(_named, str(rank), matched["id"]), ["rank"])
    if found is None:
        raise UsageError(f"no call {text!r}", found=_available(frames, rank))
    return found


def _named(part: Frames, rank: str, number: str) -> pd.DataFrame:
    """Return the first call with a number, on a given rank or, for -1, on any."""
    comm = part.comm
    is_named = comm["id"] == int(number)
    if int(rank) >= 0:
        is_named &= comm["rank"] == int(rank)
    return comm[is_named].sort_values("rank").head(1).copy()


def _first(rows: Sequence[pd.DataFrame], by: list[str]) -> pd.Series | None:
    """Return the first of some rows by columns; `-` before a column reverses its order."""
    found = [row for row in rows if len(row)]
    if not found:
        return None
    names = [name.removeprefix("-") for name in by]
    ascending = [not name.startswith("-") for name in by]
    rows_of_all = pd.concat([row.astype(object) for row in found])
    return rows_of_all.sort_values(names, ascending=ascending, kind="stable").iloc[0]


def _first_by(frames: Frames, column: str, text: str) -> pd.Series:
    by = [f"-{column}", "rank", "id"]
    found = _first(frames.by_ranks(_largest, column), by)
    if found is None and column == "blocked_ns":
        by = ["complete_ns", "issue_ns", "rank", "id"]
        found = _first(frames.by_ranks(_first_in_flight), by)
    if found is None:
        lacks = f"no call with a known {column}" if frames.num_calls else "no calls"
        raise UsageError(f"no {text} call", found=lacks)
    return found


def _first_in_flight(part: Frames) -> pd.DataFrame:
    """Return the call without an end that was issued first: none has lasted longer."""
    comm = part.comm
    calls = comm[(comm["complete_ns"] < 0) & (comm["issue_ns"] >= 0)]
    return calls.sort_values(["issue_ns", "rank", "id"]).head(1).copy()


def _largest(part: Frames, column: str) -> pd.DataFrame:
    known = part.comm[part.comm[column] >= 0]
    ordered = known[[column, "rank", "id"]].sort_values(
        [column, "rank", "id"], ascending=[False, True, True]
    )
    return known.loc[ordered.index[:1]].copy()


def _available(frames: Frames, rank: int) -> str:
    """Describe the ids of the rank that was asked for, or of all ranks."""
    ids = [each for part in frames.by_ranks(_ids, str(rank)) for each in part]
    if ids:
        subject = "ids" if rank < 0 else f"ids of rank {rank} are"
        return f"{subject} {min(ids)} to {max(ids)}"
    ranks = census(frames).ranks
    return f"calls of ranks {min(ranks)} to {max(ranks)}" if ranks else "no calls"


def _ids(part: Frames, rank: str) -> tuple[int, ...]:
    comm = part.comm
    ids = comm["id"] if int(rank) < 0 else comm.loc[comm["rank"] == int(rank), "id"]
    return (int(ids.min()), int(ids.max())) if len(ids) else ()
