"""Clock alignment of all ranks, derived from their calls.

Ranks of a running system share its monotonic clock and differ only in their reading of the wall
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

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commtrace.collective_table import EVERY_RANK, PEER, needing
from commtrace.schema import MOST_INSTANT_NS
from commtrace.tracefile.outline import SpoolOrOutline
from commtrace.tracefile.trace import Columns, StringTable

if TYPE_CHECKING:
    import numpy as np

_NOT_KNOWN = -1
# Collectives that complete on no rank before every rank has issued them.
_JOINING = frozenset(needing(EVERY_RANK))
_TRANSFERS = frozenset(needing(PEER))
# Assumed agreement of wall clocks: about what NTP achieves in one building.
_WALL_ERROR_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class Alignment:
    """Clock offset of a rank.

    Attributes:
        offset_ns: to be added to the rank's times.
        error_ns: bound on the error; 0 on the first rank's own clock, -1 if nothing bounds it.
    """

    offset_ns: int
    error_ns: int


@dataclass(frozen=True, slots=True)
class _Instants:
    """Collectives of a system's ranks, in order of group and number, on the system's clock.

    Attributes:
        group: code of the group's name and ranks.
        number: number of the collective in the group.
        is_sure: 1 if the number is right also if the group carries transfers.
        issue: when the last of the ranks issued it.
        complete: when the first of the ranks completed it.
    """

    group: np.ndarray
    number: np.ndarray
    is_sure: np.ndarray
    issue: np.ndarray
    complete: np.ndarray


Names = Mapping[str, str]
"""Common names of groups, by the rank's own names that differ."""
CallsOf = Callable[[int], Columns]
"""Returns table `comm` of a recording by its place."""


def align(
    recordings: Sequence[SpoolOrOutline],
    names: Sequence[Names] = (),
    calls_of: CallsOf | None = None,
) -> list[Alignment]:
    """Return offsets that bring the times of each recording onto the clock of the first.

    Args:
        recordings: the recordings of all ranks.
        names: for each of them the common names of its groups; by default a name means the same
            group on all ranks.
        calls_of: returns the calls of a recording; asked only if there are several systems.
    """
    names = names or [{}] * len(recordings)
    calls_of = calls_of or (lambda place: recordings[place].tables["comm"])
    own = [_offset_within_system(each, recordings) for each in recordings]
    systems: dict[str, list[int]] = {}
    for place, each in enumerate(recordings):
        systems.setdefault(each.facts["boot"], []).append(place)
    first, *others = systems
    aligned = {first: Alignment(0, 0)}
    if others:
        groups = _SharedGroups()
        # Without any completion, there is nothing to compare.
        has_ends = any(map(_states_completion, recordings))
        calls = {
            boot: _joined(
                _instants(calls_of(place), recordings[place], own[place], names[place], groups)
                for place in (places if has_ends else ())
            )
            for boot, places in systems.items()
        }
        calls = {boot: groups.counted(instants) for boot, instants in calls.items()}
        _align_systems(aligned, others, calls)
    found = []
    for each, offset in zip(recordings, own, strict=True):
        system = aligned.get(each.facts["boot"], Alignment(0, _NOT_KNOWN))
        found.append(Alignment(offset + system.offset_ns, system.error_ns))
    return found


def _offset_within_system(recording: SpoolOrOutline, recordings: Sequence[SpoolOrOutline]) -> int:
    """Return the offset from a recording's clock to the clock of the first of its system."""
    first = next(each for each in recordings if each.facts["boot"] == recording.facts["boot"])
    return first.facts["epoch_ns"] - recording.facts["epoch_ns"]


def _states_completion(recording: SpoolOrOutline) -> bool:
    # A host does not see completion on a device, but an imported file may state it.
    return recording.facts["device"] == "cpu" or bool(recording.facts.get("sees_completion"))


def _align_systems(
    aligned: dict[str, Alignment], others: Iterable[str], calls: Mapping[str, _Instants]
) -> None:
    """Align systems in sequence, smallest error first; skip those that share no call."""
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


def _between(own: _Instants, other: _Instants) -> Alignment | None:
    """Return the alignment of their times to ours; None if they share no collective."""
    import numpy as np  # imported late: the spools of one system are merged without

    group = np.concatenate([own.group, other.group])
    number = np.concatenate([own.number, other.number])
    # Stable, so that of two alike the first one is ours.
    order = np.lexsort((number, group))
    group, number = group[order], number[order]
    is_shared = (group[1:] == group[:-1]) & (number[1:] == number[:-1])
    if not is_shared.any():
        return None
    ours, theirs = order[:-1][is_shared], order[1:][is_shared] - len(own.group)
    least = int((own.issue[ours] - other.complete[theirs]).max())
    most = int((own.complete[ours] - other.issue[theirs]).min())
    error = abs(most - least) // 2
    if least <= 0 <= most and error > _WALL_ERROR_NS:
        return Alignment(0, max(-least, most))
    return Alignment((least + most) // 2, error)


def _joined(parts: Iterable[_Instants]) -> _Instants:
    """Return the collectives of all parts, each once."""
    import numpy as np

    joined = _Instants(*[np.zeros(0, dtype=np.int64)] * 5)
    for part in parts:
        fields = (
            np.concatenate([getattr(joined, name), getattr(part, name)])
            for name in _Instants.__slots__
        )
        joined = _each_once(*fields)
    return joined


def _each_once(
    group: np.ndarray,
    number: np.ndarray,
    is_sure: np.ndarray,
    issue: np.ndarray,
    complete: np.ndarray,
) -> _Instants:
    import numpy as np

    order = np.lexsort((is_sure, number, group))
    if not len(order):
        return _Instants(group, number, is_sure, issue, complete)
    keys = [group[order], number[order], is_sure[order]]
    is_new = np.append(True, np.any([key[1:] != key[:-1] for key in keys], axis=0))
    starts = np.flatnonzero(is_new)
    group, number, is_sure = (key[starts] for key in keys)
    return _Instants(
        group,
        number,
        is_sure,
        np.maximum.reduceat(issue[order], starts),
        np.minimum.reduceat(complete[order], starts),
    )


class _SharedGroups:
    """Groups of all ranks: their codes, and which of them carry transfers."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], int] = {}
        self._mixed: set[str] = set()

    def codes_of(self, names: Sequence[str], ranks: Sequence[str]) -> np.ndarray:
        """Return the code of each group by its common name and its ranks."""
        import numpy as np

        codes = self._codes
        found = [codes.setdefault(key, len(codes)) for key in zip(names, ranks, strict=True)]
        return np.array(found, dtype=np.int64)

    def add_mixed(self, names: Collection[str]) -> None:
        """Note groups on which a rank makes transfers."""
        self._mixed.update(names)

    def counted(self, instants: _Instants) -> _Instants:
        """Return the collectives whose numbers are right, each once."""
        import numpy as np

        mixed = [code for (name, _), code in self._codes.items() if name in self._mixed]
        kept = (instants.is_sure == 1) | ~np.isin(instants.group, mixed)
        return _each_once(
            instants.group[kept],
            instants.number[kept],
            np.ones(int(kept.sum()), dtype=np.int64),
            instants.issue[kept],
            instants.complete[kept],
        )


def _instants(
    comm: Columns, recording: SpoolOrOutline, offset: int, names: Names, of_all: _SharedGroups
) -> _Instants:
    """Return the times of every collective that a rank took part in, on its system's clock.

    Args:
        comm: the rank's calls.
        recording: the rank's recording.
        offset: to be added to its times.
        names: common names of its groups.
        of_all: groups of all ranks, which are extended.
    """
    import numpy as np

    from commtrace.tracefile.arrays import recoded, view_of
    from commtrace.tracefile.collective_numbers import collective_numbers

    groups = recording.tables["groups"]
    ranks_of = dict(zip(groups["name"], groups["ranks"], strict=True))
    kinds, own = StringTable([""]), StringTable([""])
    kind = view_of(recoded(comm["kind"], kinds))
    member = view_of(recoded(comm["group"], own))
    common = [names.get(group, group) for group in own.strings]
    codes = of_all.codes_of(common, [ranks_of.get(group, "") for group in own.strings])
    is_transfer, is_joining = (
        np.array([each in chosen for each in kinds.strings])[kind]
        for chosen in (_TRANSFERS, _JOINING)
    )
    of_all.add_mixed([common[code] for code in np.unique(member[is_transfer])])
    seq = view_of(comm["seq"])
    numbers, sure = (
        collective_numbers(member, seq, is_transfer, np.full(len(seq), is_mixed))
        for is_mixed in (False, True)
    )
    issue, complete = view_of(comm["issue_ns"]), view_of(comm["complete_ns"])
    # Times that are not valid are refused later; here their sums must not overflow.
    is_valid = (complete != _NOT_KNOWN) & (np.abs(issue) <= MOST_INSTANT_NS)
    is_valid &= np.abs(complete) <= MOST_INSTANT_NS
    kept = is_joining & (numbers != _NOT_KNOWN) & is_valid & _states_completion(recording)
    return _each_once(
        codes[member[kept]],
        numbers[kept],
        (sure[kept] != _NOT_KNOWN).astype(np.int64),
        issue[kept] + offset,
        complete[kept] + offset,
    )
