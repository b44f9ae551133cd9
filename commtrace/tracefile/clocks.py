"""Clock alignment of all ranks, derived from their calls.

Ranks of one running system share its monotonic clock and differ only in their reading of the wall
clock, so they are aligned exactly. Between systems, no rank completes a collective before the last
rank has issued it. With `d` to be added to the times of B,

    completed on A >= issued on B + d        and        completed on B + d >= issued on A

for every collective that both took part in, identified by its number in its group. Transfers are
not counted, since only two ranks make them. The tightest two bounds enclose `d`. The estimate is
their midpoint, or 0, which means that the wall clocks agree, if 0 is within bounds looser than the
assumed agreement of wall clocks. Bounds that cross show clock drift: the midpoint is then off by as
much as they overlap.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from commtrace.collective_table import EVERY_RANK, PEER, needing
from commtrace.tracefile.spool import Spool

_NOT_KNOWN = -1
# Collectives that complete on no rank before every rank has issued them.
_JOINING = frozenset(needing(EVERY_RANK))
_TRANSFERS = frozenset(needing(PEER))
# Assumed agreement of wall clocks: about what NTP achieves in one building.
_WALL_ERROR_NS = 1_000_000

SharedCollective = tuple[str, str, int]
"""A collective: the group's name and ranks, and its number in the group."""
Instants = tuple[int, int]
"""Issue time of the last of some ranks in a collective, and completion time of the first."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """Clock offset of a rank.

    Attributes:
        offset_ns: to be added to the rank's times.
        error_ns: bound on the error; 0 on the first rank's own clock, -1 if nothing bounds it.
    """

    offset_ns: int
    error_ns: int


Names = Mapping[str, str]
"""Common names of groups, by the rank's own names that differ."""


def align(spools: Sequence[Spool], names: Sequence[Names] = ()) -> list[Alignment]:
    """Return offsets that bring the times of each spool onto the first one's clock.

    Args:
        spools: the spools of all ranks.
        names: for each spool the common names of its groups; by default a name means the same group
            on all ranks.
    """
    names = names or [{}] * len(spools)
    own = [_offset_within_system(spool, spools) for spool in spools]
    systems: dict[str, list[int]] = {}
    for number, spool in enumerate(spools):
        systems.setdefault(spool.facts["boot"], []).append(number)
    first, *others = systems
    aligned = {first: Alignment(0, 0)}
    if others:
        named = list(zip(spools, names, strict=True))
        mixed = {group for spool, of_spool in named for group in _with_transfers(spool, of_spool)}
        calls = {
            boot: _instants([(*named[number], own[number]) for number in numbers], mixed)
            for boot, numbers in systems.items()
        }
        _align_systems(aligned, others, calls)
    found = []
    for spool, offset in zip(spools, own, strict=True):
        system = aligned.get(spool.facts["boot"], Alignment(0, _NOT_KNOWN))
        found.append(Alignment(offset + system.offset_ns, system.error_ns))
    return found


def _offset_within_system(spool: Spool, spools: Sequence[Spool]) -> int:
    """Return the offset from a spool's clock to that of the first spool of its system."""
    first = next(each for each in spools if each.facts["boot"] == spool.facts["boot"])
    return first.facts["epoch_ns"] - spool.facts["epoch_ns"]


def _align_systems(
    aligned: dict[str, Alignment],
    others: Iterable[str],
    calls: Mapping[str, dict[SharedCollective, Instants]],
) -> None:
    """Align one system after the other, smallest error first; skip those that share no call."""
    waiting = list(others)
    while waiting:
        found = [
            (each.error_ns + aligned[known].error_ns, boot, known, each)
            for boot in waiting
            for known in aligned
            if (each := _between(calls[known], calls[boot])) is not None
        ]
        if not found:
            return
        error, boot, known, each = min(found, key=lambda one: one[0])
        aligned[boot] = Alignment(aligned[known].offset_ns + each.offset_ns, error)
        waiting.remove(boot)


def _between(
    own: Mapping[SharedCollective, Instants], other: Mapping[SharedCollective, Instants]
) -> Alignment | None:
    """Return the alignment of their times to ours; None if they share no collective."""
    shared = own.keys() & other.keys()
    if not shared:
        return None
    least = max(own[key][0] - other[key][1] for key in shared)
    most = min(own[key][1] - other[key][0] for key in shared)
    error = abs(most - least) // 2
    if least <= 0 <= most and error > _WALL_ERROR_NS:
        return Alignment(0, max(-least, most))
    return Alignment((least + most) // 2, error)


def _instants(
    spools: Iterable[tuple[Spool, Names, int]], mixed: Collection[str]
) -> dict[SharedCollective, Instants]:
    """Return the times of every collective that ranks of one system took part in, on its clock.

    `mixed` groups also carry transfers.
    """
    found: dict[SharedCollective, Instants] = {}
    for spool, names, offset in spools:
        # A host does not see completion on a device, but an imported file may state it.
        if spool.facts["device"] != "cpu" and not spool.facts.get("sees_completion"):
            continue
        comm, groups = spool.tables["comm"], spool.tables["groups"]
        ranks_of = dict(zip(groups["name"], groups["ranks"], strict=True))
        columns = (comm[name] for name in ("kind", "group", "issue_ns", "complete_ns"))
        numbers = _numbers(spool, names, mixed)
        for number, kind, group, issue, complete in zip(numbers, *columns, strict=True):
            if kind in _JOINING and number != _NOT_KNOWN and complete != _NOT_KNOWN:
                key = (names.get(group, group), ranks_of.get(group, ""), number)
                before = found.get(key, (issue + offset, complete + offset))
                found[key] = (
                    max(before[0], issue + offset),
                    min(before[1], complete + offset),
                )
    return found


def _with_transfers(spool: Spool, names: Names) -> set[str]:
    comm = spool.tables["comm"]
    pairs = set(zip(comm["kind"], comm["group"], strict=True))
    return {names.get(group, group) for kind, group in pairs if kind in _TRANSFERS}


def _numbers(spool: Spool, names: Names, mixed: Collection[str]) -> list[int]:
    """Return the number of each call among its group's collectives; -1 if unknown."""
    import numpy as np  # imported late, since merging the spools of one system needs no numpy

    from commtrace.tracefile.collective_numbers import collective_numbers

    comm = spool.tables["comm"]
    code_of: dict[str, int] = {}
    codes = [code_of.setdefault(group, len(code_of)) for group in comm["group"]]
    is_mixed = np.array([names.get(group, group) in mixed for group in code_of], dtype=bool)
    is_transfer = [kind in _TRANSFERS for kind in comm["kind"]]
    member = np.array(codes, dtype=np.int64)
    return collective_numbers(
        member,
        np.array(comm["seq"], dtype=np.int64),
        np.array(is_transfer, dtype=bool),
        is_mixed[member],
    ).tolist()
