"""Worlds of process groups in dumps: groups of the same name, created in succession.

A process that destroys its groups and creates others reuses their names. Its buffer then has calls
of two groups `0` that differ only in `pg_id`, the number of a group among all that the backend has
created on this rank. The groups created between two such ends are a *world*. The ranks begin it
together, so all ranks have the same worlds. But a rank's ring may have lost the first worlds, and a
hanging rank may not have reached the last; times then identify its worlds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from commtrace.importers.flight_recorder.entries import Dump, Entry

_Groups = dict[tuple[str, int], int]
"""World number, from 0, by backend and `pg_id`."""


@dataclass(slots=True)
class World:
    """Groups of a backend between two ends, and the period in which a rank called on them."""

    groups: dict[int, str] = field(default_factory=dict)
    first_ns: int = 0
    last_ns: int = 0

    def gap_ns(self, other: World) -> int:
        """Return the time between this world and another, 0 if they overlap."""
        return max(0, other.first_ns - self.last_ns, self.first_ns - other.last_ns)


def worlds_of(dump: Dump) -> dict[str, list[World]]:
    """Return the worlds of a rank by backend, in order."""
    calls: dict[str, dict[int, list[Entry]]] = {}
    for entry in dump.entries:
        calls.setdefault(entry.backend, {}).setdefault(entry.pg_id, []).append(entry)
    return {backend: _in_order(of_group) for backend, of_group in calls.items()}


def _in_order(calls: Mapping[int, Sequence[Entry]]) -> list[World]:
    """Split calls into worlds; a world begins with the default group, which may have no calls."""
    worlds = [World()]
    for pg_id, entries in sorted(calls.items()):
        name, description = entries[0].group, entries[0].description
        known = worlds[-1].groups.values()
        if name in known or (known and description == "default_pg"):
            worlds.append(World())
        worlds[-1].groups[pg_id] = name
    for world in worlds:
        times = [entry.issue_ns for each in world.groups for entry in calls[each]]
        world.first_ns, world.last_ns = min(times), max(times)
    return worlds


def numbered(ranks: Sequence[Mapping[str, Sequence[World]]]) -> list[_Groups]:
    """Return the world number of each rank's groups."""
    numbers: list[_Groups] = [{} for _ in ranks]
    for backend in {backend for of_rank in ranks for backend in of_rank}:
        most = max((of_rank.get(backend, ()) for of_rank in ranks), key=len)
        for found, of_rank in zip(numbers, ranks, strict=True):
            own = of_rank.get(backend, ())
            for world, number in zip(own, _places(own, most), strict=True):
                found |= {(backend, pg_id): number for pg_id in world.groups}
    return numbers


def _places(own: Sequence[World], most: Sequence[World]) -> list[int]:
    """Match a rank's worlds, in order, to the nearest worlds of the rank that has the most."""
    places = [-1]
    for left, world in zip(range(len(own), 0, -1), own, strict=True):
        among = range(places[-1] + 1, len(most) - left + 1)
        places.append(min(among, key=lambda place: world.gap_ns(most[place])))
    return places[1:]


def with_names(dump: Dump, numbers: _Groups) -> Dump:
    """Return the dump with groups of the second world renamed to `0#2`, and so on.

    `pg_config` has only the newest group of each name.
    """
    if not any(numbers.values()):
        return dump
    newest: dict[str, int] = {}
    entries = []
    for entry in dump.entries:
        number = numbers[entry.backend, entry.pg_id]
        newest[entry.group] = max(number, newest.get(entry.group, 0))
        entries.append(replace(entry, group=_name(entry.group, number)))
    groups = {_name(name, newest.get(name, 0)): about for name, about in dump.groups.items()}
    return replace(dump, entries=entries, groups=groups)


def _name(name: str, number: int) -> str:
    return f"{name}#{number + 1}" if number else name
