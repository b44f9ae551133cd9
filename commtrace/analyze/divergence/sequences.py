"""The calls of two ranks side by side, and the last place up to which they agree.

A collective of both has the same number on both, so that the calls of the group in which the fault
is are aligned by number. From there on, whichever of them comes first counts: a pair of calls from
different places, unless the ranks come together again (a branch that both can take), or the point
from which one rank is a call ahead of the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

import numpy as np
import pandas as pd

from commtrace.analyze.run.matching import RECV, SEND

OF_SITE = ("kind", "phase", "module", "source_file", "source_line", "callers")
"""Columns of the place of a call."""
_SITE = (
    "kind", "label", "phase", "module", "source_file", "source_line", "source_function", "callers",
)  # fmt: skip
_SITE_OF_ROLES = tuple(name for name in _SITE if name != "callers")
_Site = tuple[object, ...]
_Pair = tuple[pd.Series, pd.Series]
_WINDOW = 400
"""Calls after a first difference that are aligned with each other."""
_MOST_ALIKE = 32
"""Maximum number of calls of a loop round that is recognized as repeating."""
_MOST_CALLS = 20_000
"""Calls of each rank before the fault that are compared."""


@dataclass(frozen=True, slots=True, eq=False)
class Parting:
    """The place at which two ranks part: rows of their calls, by position.

    Attributes:
        common: The last call that both made in the group, of each rank; None if there is none.
        own: The next call of the first rank; None if it made none.
        others: The next call of the other rank; None if it made none.
        first_number: Number in the group of the first call that both have.
        earliest_ns: Time on the first rank from which on it may have left out, or added, a call
            that looks like its neighbours; -1 if the place is certain.
    """

    common: _Pair | None
    own: pd.Series | None
    others: pd.Series | None
    earliest_ns: int = -1
    first_number: int = 0


def parting(
    calls: pd.DataFrame, own: int, other: int, group: str, number: int, labels: dict[str, str]
) -> Parting:
    """Return the place at which rank `own` parts from rank `other` before a fault.

    Args:
        calls: Calls of both, as `calls_of_ranks` returns them.
        own: The rank that did something else.
        other: A rank that did what the others did.
        group: Group in which the fault is.
        number: Number of the faulty call in the group.
        labels: Label of each group, equal for groups that correspond to each other.
    """
    mine, theirs = (_of_rank(calls, rank, group, number, labels) for rank in (own, other))
    pairs = [
        each[(each["group"] == group) & ~each["is_transfer"] & (each["number"] >= 0)]
        for each in (mine, theirs)
    ]
    first = max([int(each["number"].min()) for each in pairs if len(each)], default=0)
    in_group = [each[each["number"] >= first] for each in pairs]
    place, earliest = _first_difference(in_group[0], in_group[1], _SITE)
    if not place:  # ranks of different roles make each call below other lines
        place, earliest = _first_difference(in_group[0], in_group[1], _SITE_OF_ROLES)
    common = None
    begins = [0, 0]
    if place > 0:
        rows = [each.iloc[place - 1] for each in in_group]
        common = rows[0], rows[1]
        begins = [
            int(np.flatnonzero(mine.index == rows[0].name)[0]) + 1,
            int(np.flatnonzero(theirs.index == rows[1].name)[0]) + 1,
        ]
    of_both = {name for name, label in labels.items() if name == label}
    at, then, common = _walk(mine, theirs, begins[0], begins[1], common, of_both)
    return Parting(common, at, then, earliest, first)


def _of_rank(
    calls: pd.DataFrame, rank: int, group: str, number: int, labels: dict[str, str]
) -> pd.DataFrame:
    """Return a rank's calls of the threads that use the group, up to the fault, with `label`."""
    own = calls[calls["rank"] == rank]
    threads = own.loc[own["group"] == group, "thread"].unique()
    if len(threads):
        own = own[own["thread"].isin(threads)]
    own = own.assign(label=own["group"].map(labels).fillna("").astype(object))
    in_group = own[(own["group"] == group) & ~own["is_transfer"]]
    faulty, after = (in_group[in_group["number"] == number], in_group[in_group["number"] > number])
    if len(faulty):
        own = own[own["id"] <= faulty["id"].min()]
    elif len(after):
        own = own[own["id"] < after["id"].min()]
    return own.tail(_MOST_CALLS)


def _walk(
    mine: pd.DataFrame,
    theirs: pd.DataFrame,
    i: int,
    j: int,
    common: _Pair | None,
    of_both: set[str],
) -> tuple[pd.Series | None, pd.Series | None, tuple[pd.Series, pd.Series] | None]:
    """Return the first calls that differ from a place on, and the last calls before that agree.

    Groups `of_both` have both ranks as members, even if a rank has made no call there.
    """
    shared = of_both | (set(mine["label"]) & set(theirs["label"]))
    own = mine.iloc[i:]
    other = theirs.iloc[j:]
    # Calls in groups that the other rank has no counterpart of are no parting.
    own, other = (each[each["label"].isin(shared)] for each in (own, other))
    equal = _is_equal(own, other, _SITE) | _are_ends(own, other)
    num = len(equal) if equal.all() else int(np.argmin(equal))
    if num:
        common = own.iloc[num - 1], other.iloc[num - 1]
    rows = [each.iloc[num] if num < len(each) else None for each in (own, other)]
    return rows[0], rows[1], common


def _are_ends(own: pd.DataFrame, other: pd.DataFrame) -> np.ndarray:
    """Return whether the calls at each place may be both ends of a transfer."""
    num = min(len(own), len(other))
    one, two = own.iloc[:num], other.iloc[:num]
    kinds = [each["kind"].astype(object).to_numpy() for each in (one, two)]
    is_pair = ((kinds[0] == SEND) & (kinds[1] == RECV)) | ((kinds[0] == RECV) & (kinds[1] == SEND))
    ranks, peers = ([each[name].to_numpy() for each in (one, two)] for name in ("rank", "peer"))
    are_peers = (ranks[0] == peers[1]) & (ranks[1] == peers[0])
    return is_pair & are_peers


def _is_equal(own: pd.DataFrame, other: pd.DataFrame, names: Sequence[str]) -> np.ndarray:
    """Return whether the calls at each position, as far as both have one, are of the same place."""
    num = min(len(own), len(other))
    equal = np.ones(num, dtype=bool)
    for name in names:
        equal &= own[name].to_numpy()[:num] == other[name].to_numpy()[:num]
    steps = [each["step"].to_numpy()[:num] for each in (own, other)]
    # A step that has not ended on one of them is unknown there.
    return equal & ((steps[0] == steps[1]) | (steps[0] < 0) | (steps[1] < 0))


def _first_difference(
    own: pd.DataFrame, other: pd.DataFrame, names: Sequence[str]
) -> tuple[int, int]:
    """Return the number of pairs of calls before the parting, and the earliest time of it."""
    equal = _is_equal(own, other, names)
    start = 0
    while (wrong := np.flatnonzero(~equal[start:])).size:
        begin = start + int(wrong[0])
        is_last = max(len(own), len(other)) <= begin + _WINDOW
        sites = [_sites(each.iloc[begin : begin + _WINDOW], names) for each in (own, other)]
        found = _parting_in(*sites, is_last=is_last)
        if found is not None:
            return begin + found, _earliest(own, other, begin + found, names)
        if is_last:
            break
        start = begin + min(map(len, sites))
    place = min(len(own), len(other))
    return place, _earliest(own, other, place, names)


def _sites(calls: pd.DataFrame, of: Sequence[str]) -> list[_Site]:
    names = [*of, *(["step"] if (calls["step"] >= 0).all() else [])]
    return [*calls[names].itertuples(index=False, name=None)]


def _parting_in(own: list[_Site], other: list[_Site], *, is_last: bool) -> int | None:
    """Return where two sequences part for good; None if they come together again.

    Args:
        own: The places of the calls of a rank.
        other: The places of another rank's calls.
        is_last: The sequences end here, rather than go on.
    """
    for tag, a, a_end, b, b_end in SequenceMatcher(None, own, other, autojunk=False).get_opcodes():
        at_end = a_end == len(own) or b_end == len(other)
        comes_together = a_end - a == b_end - b and not at_end
        if tag != "equal" and not comes_together and (is_last or not at_end):
            return min(a, b)
    return None


def _earliest(own: pd.DataFrame, other: pd.DataFrame, place: int, names: Sequence[str]) -> int:
    """Return since when rank `own` can have left out or added a call; -1 if the place is certain.

    In a loop whose calls are alike, a call that is left out shows only when the loop ends. A rank
    that makes a call of its rounds out of turn has parted there.
    """
    before = _sites(own.iloc[max(place - _WINDOW, 0) : place], names)
    period = next((num for num in range(1, _MOST_ALIKE + 1) if _repeats(before, num)), 0)
    if not period:
        return -1
    following = [_sites(each.iloc[place : place + 1], names) for each in (own, other)]
    continues = [each == before[-period : len(before) - period + 1] for each in following]
    if continues[0] == continues[1] or {*following[continues[0]]} & {*before[-period:]}:
        return -1
    num = period
    while num < len(before) and before[-1 - num] == before[-1 - num + period]:
        num += 1
    return int(own["issue_ns"].iloc[place - num])


def _repeats(sites: list[_Site], period: int) -> bool:
    num = len(sites)
    return num >= 2 * period and sites[num - period :] == sites[num - 2 * period : num - period]
