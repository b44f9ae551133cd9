"""Generations of process groups that were destroyed and recreated under the same name.

Once a process has destroyed its groups, it numbers new ones from 0 again. A rank then has several
groups `0`; its own spool calls the second `0#2`. A rank's own count does not identify the
generation, since the rank may have called on some of them only:

    rank 0    0 ████      0#2 ███          all of them by the same names:
    rank 2                0   ███    ->    0#2 on rank 2, too

Members leave a group before they create the next together, so calls on a group precede those on the
next. Calls are therefore clustered by proximity in time, as long as no rank is in a cluster twice.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from commtrace.tracefile.trace import Columns, StringTable

_AGAIN = re.compile(r"(.*)#\d{1,9}", re.ASCII | re.DOTALL)


@dataclass(slots=True)
class _GroupUse:
    """Period of a rank's calls on one of the groups of a name; `place` is the rank's."""

    place: int
    name: str
    first_ns: int
    last_ns: int


def base_of(name: str) -> str:
    """Return the name under which a group was created.

    >>> base_of("0#2")
    '0'
    """
    again = _AGAIN.fullmatch(name)
    return again[1] if again else name


def generations(
    names: Sequence[Sequence[str]], calls_of: Callable[[int], Columns]
) -> list[dict[str, int]]:
    """Return, for each rank, the generation of each group name.

    Generations count from 1; a name that is missing means the first.

    Args:
        names: names of the groups of each rank.
        calls_of: returns table `comm` of a rank by its place; called only if a name is repeated.
    """
    found: list[dict[str, int]] = [{} for _ in names]
    for uses in _made_again(names, calls_of):
        for number, together in enumerate(_clusters(uses), start=1):
            for use in together:
                found[use.place][use.name] = number
    return found


def _made_again(
    names: Sequence[Sequence[str]], calls_of: Callable[[int], Columns]
) -> list[list[_GroupUse]]:
    """Return the calls by group and rank, for names that some rank gave to several groups."""
    again = {
        base for of_rank in names for base, num in Counter(map(base_of, of_rank)).items() if num > 1
    }
    by_base: dict[str, list[_GroupUse]] = {}
    for place in range(len(names) if again else 0):
        for use in _uses(calls_of(place), place):
            if (base := base_of(use.name)) in again:
                by_base.setdefault(base, []).append(use)
    return list(by_base.values())


def _uses(comm: Columns, place: int) -> list[_GroupUse]:
    """Return the use of each group, in the order of the first calls."""
    import numpy as np  # imported late, since only readers ask

    from commtrace.tracefile.arrays import recoded, view_of

    groups = recoded(comm["group"], StringTable())
    issue, complete = view_of(comm["issue_ns"]), view_of(comm["complete_ns"])
    order = np.argsort(view_of(groups), kind="stable")
    if not len(order):
        return []
    codes = view_of(groups)[order]
    starts = np.flatnonzero(np.append(True, codes[1:] != codes[:-1]))
    first = np.minimum.reduceat(issue[order], starts)
    last = np.maximum.reduceat(np.maximum(issue, complete)[order], starts)
    return [
        _GroupUse(place, groups.strings[int(codes[starts[n]])], int(first[n]), int(last[n]))
        for n in np.argsort(order[starts])
    ]


def _clusters(uses: list[_GroupUse]) -> list[list[_GroupUse]]:
    """Cluster periods by group, in order of time; the smallest gaps are closed first."""
    ordered = sorted(uses, key=lambda each: (each.first_ns, each.place))
    gaps, reached = [], ordered[0].last_ns
    for number, use in enumerate(ordered[1:]):
        gaps.append((use.first_ns - reached, number))
        reached = max(reached, use.last_ns)
    clusters = [[use] for use in ordered]
    cluster_of = {id(use): cluster for use, cluster in zip(ordered, clusters, strict=True)}
    for _, number in sorted(gaps):
        before, after = (cluster_of[id(ordered[number + each])] for each in (0, 1))
        if {each.place for each in before}.isdisjoint(each.place for each in after):
            before += after
            for each in after:
                cluster_of[id(each)] = before
    in_order = [cluster_of[id(use)] for use in ordered]
    return list({id(cluster): cluster for cluster in in_order}.values())
