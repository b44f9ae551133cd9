"""Numbers of groups and call sites that the ranks of a run share.

Each spool numbers its strings and call sites separately. Most of them are equal on all ranks, so
each is kept once, under a run-wide number. Calls of all ranks can then be processed in a single
array operation.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from commtrace.collective_table import EVERY_RANK, KINDS, needing
from commtrace.tracefile.reading import DamageError

TRANSFERS = ("send", "recv")
_UNDESCRIBED = "undefined"
"""Description that torch gives to a group without any."""
_JOINING = frozenset(needing(EVERY_RANK))


class Site(NamedTuple):
    """Properties shared by the calls of a site; `group` is a number of `RunNames.groups`."""

    group: int
    kind: str
    native_op: str
    reduce_op: str
    root: int
    peer: int
    dtype: str
    input_shapes: str
    output_shapes: str
    payload_bytes: int
    wire_bytes: int
    is_async: int
    phase: str
    region: str
    module: str
    op: str
    source_file: str
    source_line: int
    source_function: str


class NamedGroup(NamedTuple):
    """A process group: its name and its members, in order."""

    name: str
    ranks: tuple[int, ...]


SITE_COLUMNS = ("rank", "thread", *(name for name in Site._fields if name != "group"))
"""Columns of a call site that are read, besides the group."""


class RunNames:
    """Groups, call sites and kinds of a run, by number."""

    def __init__(self) -> None:
        self.groups: list[NamedGroup] = []
        self.axes: dict[int, str] = {}
        self.descriptions: dict[int, str] = {}
        self.sites: list[Site] = []
        self.kinds: list[str] = []
        self._strings: dict[str, str] = {}
        self._group_numbers: dict[NamedGroup, int] = {}
        self._site_numbers: dict[Site, int] = {}
        self._kind_numbers: dict[str, int] = {}
        self._signatures: dict[tuple[Any, ...], int] = {}
        self._rows: list[tuple[int, ...]] = []
        self._table = np.empty((0, 6), dtype=np.int64)

    def same(self, strings: list[str]) -> list[str]:
        """Return the strings, each as the object kept for all equal strings."""
        known = self._strings
        return [known.setdefault(each, each) for each in strings]

    def group(self, name: str, ranks: str = "", axis: str = "", description: str = "") -> int:
        """Return the number of a group; keep its axis and description once they are known."""
        try:
            members = tuple([int(each) for each in ranks.split(",")] if ranks else ())
        except ValueError as error:
            raise DamageError(f"ranks {ranks[:40]!r}", "tables.groups") from error
        group = NamedGroup(name, members)
        number = self._group_numbers.setdefault(group, len(self.groups))
        if number == len(self.groups):
            self.groups.append(group)
        if axis:
            self.axes[number] = axis
        if description not in ("", _UNDESCRIBED):
            self.descriptions[number] = description
        return number

    def label(self, group: int) -> str:
        """Return the mesh axis of a group, or else its description, or else its name."""
        return self.axes.get(group) or self.descriptions.get(group) or self.groups[group].name

    def site(self, site: Site) -> int:
        """Return the number of a call site."""
        number = self._site_numbers.setdefault(site, len(self.sites))
        if number == len(self.sites):
            self.sites.append(site)
            self._rows.append(self._row(site))
        return number

    def _row(self, site: Site) -> tuple[int, ...]:
        kind = self._kind_numbers.setdefault(site.kind, len(self.kinds))
        if kind == len(self.kinds):
            self.kinds.append(site.kind)
        is_uneven = site.kind not in KINDS or KINDS[site.kind].is_uneven
        size = -1 if is_uneven else site.payload_bytes
        signature = (site.kind, site.reduce_op, site.root, site.dtype, size)
        return (
            site.group,
            kind,
            site.wire_bytes,
            self._signatures.setdefault(signature, len(self._signatures)),
            site.kind in TRANSFERS,
            site.kind in _JOINING,
        )

    def table(self) -> np.ndarray[Any, Any]:
        """Return group, kind, wire bytes, signature, is_transfer and is_joining of each site.

        Calls of unequal signature disagree, unless a differing property is unknown.
        """
        if len(self._table) < len(self._rows):
            self._table = np.array(self._rows, dtype=np.int64)
        return self._table
