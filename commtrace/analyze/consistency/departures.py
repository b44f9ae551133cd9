"""Departures: calls by which a rank leaves the order of its own earlier rounds.

Ranks with different roles, such as pipeline stages, make different calls, so that comparing them
does not show which rank did something else. A program repeats itself, though:

    rounds before    all_reduce    recv    all_reduce    recv    all_reduce
    then             all_reduce            all_reduce

The second all_reduce is a departure: in all earlier rounds, a recv followed the first. If
different calls followed in them, only the rounds with the same calls before it count. A rank has no
departure if it made too few rounds.

Rounds can be nested, as steps are within epochs: a rank that made 12 recvs between two all_reduces
of the same place each time, and then 11, has left out a recv.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from commtrace.analyze.consistency.coverage import source_of
from commtrace.analyze.consistency.numbered import calls_of_ranks
from commtrace.analyze.run.frame import Frames
from commtrace.units import counted

_PLACE = (
    "kind", "group", "peer", "phase", "module", "source_file", "source_line", "source_function",
)  # fmt: skip
_ENDS = ("group", "peer")
_LINE = [name for name in _PLACE if name not in _ENDS]
_LEAST_ROUNDS = 2
_LEAST_INNER_ROUNDS = 3
_MOST_BEFORE = 64
"""Calls before a place by which its rounds are compared."""
_LATEST = 16
"""Earlier rounds in which the rest of a round is looked at."""
_MOST_IN_ROUND = 256
MOST_COMPARED = 64
"""Number of ranks whose departures are searched at once."""
_MOST_CALLS = 4_000
"""Number of the last calls of a rank in which its rounds are searched."""
_MOST_SINCE = 64
"""Number of the last calls of a rank in which a departure is searched."""


@dataclass(frozen=True, slots=True, eq=False)
class Departure:
    """The place at which a rank leaves its own order: rows of its calls.

    Attributes:
        before: The last call in the usual order.
        made: The next call of the rank.
        usual: The call that followed `before` in the latest earlier round.
        num_rounds: Number of earlier rounds in which `usual` followed `before`.
        is_left_out: In an earlier round, `made` came after `usual`, or on another rank right after
            it: only `usual`, and perhaps more of the round, is missing.
        is_altered: `made` and `usual` differ only in their group or peer.
        is_new: The rank never made `made` after `before` in earlier rounds.
        nums: Numbers of `usual` in the last round and in those before, if it was made fewer times.
        since_ns: Begin of that last round, in any part of which it was left out; -1 if none.
    """

    rank: int
    before: pd.Series
    made: pd.Series
    usual: pd.Series
    num_rounds: int
    is_left_out: bool
    is_altered: bool
    is_new: bool
    nums: tuple[int, int] = (0, 0)
    since_ns: int = -1

    def text(self) -> str:
        """Return the departure in words that follow the name of the rank."""
        has_group = self.is_altered and self.usual["group"] != self.made["group"]
        usual, made = (_call_text(call, with_group=has_group) for call in (self.usual, self.made))
        rounds = counted(self.num_rounds, "round")
        if any(self.nums):
            last, before = self.nums
            return (
                f"left out {usual}: it made it {counted(last, 'time')} before {made}, and "
                f"{counted(before, 'time')} in {rounds} before"
            )
        if self.is_left_out:
            return f"left out {usual}, which it made in {rounds} before, and went on to {made}"
        return f"made {made}, where it made {usual} in {rounds} before"


def _call_text(call: pd.Series, *, with_group: bool = False) -> str:
    towards = {"send": " to", "recv": " from"}.get(str(call["kind"]))
    peer = f"{towards} rank {call['peer']}" if towards and call["peer"] >= 0 else ""
    at = f" at {source_of(call)}" if source_of(call) else ""
    group = f" of group {call['group']}" if with_group else ""
    return f"{call['kind']}{group}{peer}{at}"


def departures(frames: Frames, ranks: Collection[int]) -> dict[int, Departure]:
    """Return, by rank, the first departure among the last calls of each rank, if any."""
    calls = calls_of_ranks(frames, sorted(ranks))
    recent = calls.groupby("rank").tail(_MOST_CALLS)
    found = {}
    for rank, own in calls.groupby("rank"):
        # Threads take turns in ways that differ from round to round.
        last_thread = own["thread"].iloc[-1]
        own = own[own["thread"] == last_thread].tail(_MOST_CALLS)
        if (departure := _departure(int(str(rank)), own, recent)) is not None:
            found[departure.rank] = departure
    return found


def compared_with(
    frames: Frames, found: dict[int, Departure], others: Collection[int]
) -> dict[int, Departure]:
    """Return departures with `is_left_out` also where another rank made `usual`, then `made`.

    A rank whose rounds end early makes a call that is new to it; so do those that end regularly.
    """
    if not others or all(each.is_left_out for each in found.values()):
        return found
    calls = calls_of_ranks(frames, sorted(others)).groupby("rank").tail(_MOST_CALLS)
    follows = (calls[["rank", "thread"]] == calls[["rank", "thread"]].shift()).all(axis=1)
    then = {
        (tuple(before), tuple(after))
        for before, after in zip(
            calls[_LINE].shift()[follows].to_numpy(), calls[_LINE][follows].to_numpy(), strict=True
        )
    }
    return {
        rank: replace(
            each, is_left_out=each.is_left_out or (_line(each.usual), _line(each.made)) in then
        )
        for rank, each in found.items()
    }


def _line(call: pd.Series) -> tuple[object, ...]:
    return tuple(call[_LINE])


def _departure(rank: int, own: pd.DataFrame, calls: pd.DataFrame) -> Departure | None:
    codes = pd.MultiIndex.from_frame(own[[*_PLACE]].astype(object)).factorize()[0]
    first = max(len(codes) - _MOST_SINCE, 1)
    for at in range(first, len(codes)):
        rounds = _rounds_like(codes, at)
        if not rounds or codes[at] == codes[rounds[-1]]:
            continue
        follows = (codes[: at - 1] == codes[rounds[-1]]) & (codes[1:at] == codes[at])
        is_left_out = bool(follows.any()) or any(
            codes[at] in _rest_of_round(codes, place, at) for place in rounds[-_LATEST:]
        )
        before, made, last = (own.iloc[place] for place in (at - 1, at, rounds[-1]))
        if _is_of_all(calls, made, last):
            continue
        is_altered = all(made[name] == last[name] for name in _LINE)
        is_new = not ((codes[: at - 1] == codes[at - 1]) & (codes[1:at] == codes[at])).any()
        return Departure(rank, before, made, last, len(rounds), is_left_out, is_altered, is_new)
    return _of_fewer(rank, own, codes)


def _is_of_all(calls: pd.DataFrame, made: pd.Series, usual: pd.Series) -> bool:
    """Return whether all came to a collective at its line after as many calls of the usual group.

    The loop of the usual calls ended on all ranks then, so that no rank left out a call.
    """
    if made["is_transfer"] or usual["is_transfer"] or made["number"] < 0:
        return False
    in_group = calls[calls["group"] == usual["group"]]
    joint = calls[(calls["group"] == made["group"]) & (calls["number"] == made["number"])]
    joint = joint[(joint[_LINE] == made[_LINE]).all(axis=1)].set_index("rank")["id"]
    members = in_group["rank"].unique()
    until = in_group["rank"].map(joint)
    last = in_group[in_group["id"] < until].groupby("rank")["number"].max()
    return 1 < len(members) == len(last) and last.nunique() == 1


def _rest_of_round(codes: np.ndarray, place: int, at: int) -> np.ndarray:
    """Return the calls after a place, until the call before it is made again."""
    rest = codes[place + 1 : min(place + 1 + _MOST_IN_ROUND, at)]
    again = np.flatnonzero(rest == codes[place - 1])
    return rest[: again[0] + 1] if again.size else rest


def _of_fewer(rank: int, own: pd.DataFrame, codes: np.ndarray) -> Departure | None:
    """Return the departure of a rank whose last call came after fewer inner rounds than before."""
    at = len(codes) - 1
    ends = np.flatnonzero(codes[:at] == codes[at])
    again = np.flatnonzero(codes[: at - 1] == codes[at - 1]) + 1
    again = again[codes[again] != codes[at]]
    if not ends.size or ends[-1] == at - 1 or not again.size:
        return None
    place = max(again.tolist(), key=lambda each: _num_alike(codes, each, at))
    nums = [int((part == codes[place]).sum()) for part in np.split(codes[:at], ends + 1)]
    *before, last = nums
    if len({*before}) > 1 or not 0 < last < before[0] or before[0] < _LEAST_INNER_ROUNDS:
        return None
    return Departure(
        rank,
        *(own.iloc[each] for each in (at - 1, at, place)),
        num_rounds=len(before),
        is_left_out=True,
        is_altered=False,
        is_new=False,
        nums=(last, before[0]),
        since_ns=int(own["issue_ns"].iloc[ends[-1]]),
    )


def _num_alike(codes: np.ndarray, one: int, other: int) -> int:
    """Return how many calls before two places are alike, up to `_MOST_BEFORE`."""
    num = min(one, other, _MOST_BEFORE)
    unlike = np.flatnonzero((codes[one - num : one] != codes[other - num : other])[::-1])
    return int(unlike[0]) if unlike.size else num


def _rounds_like(codes: np.ndarray, at: int) -> list[int]:
    """Return earlier places at which the same call always followed the calls before a place.

    As few calls before it are compared as are needed. Empty if there are too few such places, or if
    the call at the place was made again in later rounds, so that it is usual as well.
    """
    places = np.flatnonzero(codes[:-1] == codes[at - 1]) + 1
    for num in range(1, _MOST_BEFORE + 1):
        before = places[places < at]
        if len(before) < _LEAST_ROUNDS:
            return []
        if (codes[before] == codes[before[0]]).all():
            is_usual = (codes[places[places > at]] == codes[at]).any()
            return [] if is_usual else before.tolist()
        if num >= at:
            return []
        places = places[places > num]
        places = places[codes[places - 1 - num] == codes[at - 1 - num]]
    return []
