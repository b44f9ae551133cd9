"""Peers of a call: the other members' calls, their arrival, and their disagreements with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from commtrace.analyze.excerpts.excerpt import excerpt, selected
from commtrace.analyze.measures.arrivals import arrivals
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.run.known import is_fake_world
from commtrace.analyze.run.matching import NONE, TRANSFERS, matches, numbers

_ALIKE = ("kind", "reduce_op", "root", "dtype")


@dataclass(frozen=True, slots=True)
class Peer:
    """A rank's call of the collective, or an end of a transfer; -1 stands for unknown.

    Attributes:
        after_ns: Arrival, in ns since the first arrival.
        is_this: It is the call being explained.
        is_last: It arrived last.
        differs: Properties in which it disagrees with the call being explained, with its values.
    """

    rank: int
    id: int
    kind: str
    after_ns: int
    blocked_ns: int
    wait_ns: int
    transfer_ns: int
    is_this: bool
    is_last: bool
    differs: str


@dataclass(frozen=True, slots=True)
class MatchedCalls:
    """All calls of a collective or transfer.

    Attributes:
        number: The collective's number in its group; -1 if unknown.
        peers: The calls, by arrival.
        waited_for: Rank whose arrival ended this call's wait; -1 if unknown.
        missing_ranks: Ranks the call needs whose call is not in the trace.
    """

    number: int
    peers: tuple[Peer, ...]
    waited_for: int
    missing_ranks: tuple[int, ...]


def matched_calls(frames: Frames, call: pd.Series) -> MatchedCalls:
    """Return the calls that form a collective or transfer with a row of table `comm`."""
    label: Any = call.name
    match = max(frames.by_ranks(_match_of, str(label)))
    rows = selected(frames, _are_of, match) if match >= 0 else pd.Index([label])
    calls = excerpt(frames, rows)
    number = int(numbers(calls)[label])
    arrived = arrivals(calls)
    # The wait for peers, not the program's wait for the call.
    others = calls.comm.drop(columns="wait_ns", errors="ignore")
    rows = others.join(arrived.drop(columns=["rank", "id"]))
    rows = rows.sort_values(["issue_ns", "rank"])
    issued = rows.loc[rows["issue_ns"] >= 0, "issue_ns"]
    # Both are nan if no time is known, and every comparison with nan is false.
    first, last = issued.min(), issued.max()
    peers = tuple(
        Peer(
            rank=int(row["rank"]),
            id=int(row["id"]),
            kind=str(row["kind"]),
            after_ns=int(row["issue_ns"] - first) if row["issue_ns"] >= 0 else -1,
            blocked_ns=int(row["blocked_ns"]),
            wait_ns=int(row["wait_ns"]),
            transfer_ns=int(row["transfer_ns"]),
            is_this=bool(each == label),
            is_last=bool(row["issue_ns"] == last > first),
            differs=_differences(call, row),
        )
        for each, row in rows.iterrows()
    )
    arrived_ranks = {peer.rank for peer in peers}
    required = () if is_fake_world(frames) else _required_ranks(frames, call)
    missing = tuple(rank for rank in required if rank not in arrived_ranks)
    return MatchedCalls(number, peers, int(arrived["last_rank"].loc[label]), missing)


def _match_of(part: Frames, label: str) -> int:
    return int(matches(part).get(int(label), NONE))


def _are_of(part: Frames, match: int) -> pd.Series:
    return matches(part) == match


def _required_ranks(frames: Frames, call: pd.Series) -> tuple[int, ...]:
    """Return the ranks that the call needs: its group's members, or both ends of a transfer."""
    if call["kind"] in TRANSFERS:
        return tuple(int(rank) for rank in (call["rank"], call["peer"]) if rank >= 0)
    return ranks_of(frames, str(call["group"]))


def ranks_of(frames: Frames, group: str) -> tuple[int, ...]:
    """Return the members of a group, in group order; empty if unknown."""
    rows = frames.groups[frames.groups["name"] == group]
    listed = str(rows["ranks"].iloc[0]) if len(rows) else ""
    return tuple(int(rank) for rank in listed.split(",") if rank)


def _differences(call: pd.Series, row: pd.Series) -> str:
    """List the properties in which a peer's call differs, with its values: `dtype bfloat16`."""
    if call["kind"] in TRANSFERS:
        return ""
    return ", ".join(f"{name} {row[name]}" for name in _ALIKE if row[name] != call[name])
