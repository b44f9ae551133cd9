"""Departures: calls by which a rank leaves the order that its own earlier rounds had.

Ranks with different roles, such as pipeline stages, make different calls, so that comparing them
does not show which one did something else. A program repeats itself, though:

    rounds before    all_reduce    recv    all_reduce    recv    all_reduce
    then             all_reduce            all_reduce

After its all_reduce, this rank has always made a recv. It is the first place at which what it made
had never followed before. One without enough earlier rounds, or in whose rounds different calls
follow, has no departure: nothing is said then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pandas as pd

from commtrace.analyze.consistency.coverage import source_of
from commtrace.analyze.consistency.numbered import calls_of_ranks
from commtrace.analyze.frame import Frames
from commtrace.units import counted

_PLACE = (
    "kind", "group", "peer", "phase", "module", "source_file", "source_line", "source_function",
)  # fmt: skip
_LEAST_ROUNDS = 2
_MOST_CALLS = 4_000
"""Calls of a rank, the last ones, among which its rounds are looked for."""
_MOST_SINCE = 64
"""Calls, the last ones, among which a departure is looked for."""


@dataclass(frozen=True, slots=True, eq=False)
class Departure:
    """The place at which a rank leaves its own order: rows of its calls.

    Attributes:
        before: The call after which it departs.
        made: The call that it made then.
        usual: The call that followed in earlier rounds, as last made.
        num_rounds: Number of earlier rounds in which it did.
        is_left_out: What it made has followed the usual call, so that only that one is lacking.
    """

    rank: int
    before: pd.Series
    made: pd.Series
    usual: pd.Series
    num_rounds: int
    is_left_out: bool

    def text(self) -> str:
        """Return it in words that follow the name of the rank."""
        usual, made = (_call_text(call) for call in (self.usual, self.made))
        rounds = counted(self.num_rounds, "round")
        if self.is_left_out:
            return f"left out {usual}, which it made in {rounds} before, and went on to {made}"
        return f"made {made}, where it made {usual} in {rounds} before"


def _call_text(call: pd.Series) -> str:
    towards = {"send": " to", "recv": " from"}.get(str(call["kind"]))
    peer = f"{towards} rank {call['peer']}" if towards and call["peer"] >= 0 else ""
    at = f" at {source_of(call)}" if source_of(call) else ""
    return f"{call['kind']}{peer}{at}"


def departures(
    frames: Frames, ranks: Collection[int], since_ns: Mapping[int, int] | None = None
) -> dict[int, Departure]:
    """Return the departure of each of some ranks that has one among its last calls.

    Args:
        frames: The run.
        ranks: The ranks.
        since_ns: By rank, the time before which what it did is known to be right.
    """
    calls = calls_of_ranks(frames, sorted(ranks))
    found = {}
    for rank, own in calls.groupby("rank"):
        # Threads take turns in ways that differ from round to round.
        last_thread = own["thread"].iloc[-1]
        own = own[own["thread"] == last_thread].tail(_MOST_CALLS)
        begin = (since_ns or {}).get(int(str(rank)), -1)
        if (departure := _departure(int(str(rank)), own, begin)) is not None:
            found[departure.rank] = departure
    return found


def _departure(rank: int, own: pd.DataFrame, since_ns: int) -> Departure | None:
    codes = pd.MultiIndex.from_frame(own[[*_PLACE]].astype(object)).factorize()[0].tolist()
    times = own["issue_ns"].tolist()
    first = max(len(codes) - _MOST_SINCE, 1)
    for at in range(first, len(codes)):
        if times[at] < since_ns:
            continue
        followed = [place for place in range(1, at) if codes[place - 1] == codes[at - 1]]
        usual = {codes[place] for place in followed}
        if len(followed) < _LEAST_ROUNDS or len(usual) != 1 or codes[at] in usual:
            continue
        (expected,) = usual
        is_left_out = any(
            codes[place] == expected and codes[place + 1] == codes[at] for place in range(at - 1)
        )
        before, made, last = (own.iloc[place] for place in (at - 1, at, followed[-1]))
        return Departure(rank, before, made, last, len(followed), is_left_out)
    return None
