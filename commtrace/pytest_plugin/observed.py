"""Countable rows of a test's communication, built from its traces.

The traces come from the test's own process and from every run of ranks that it made. A rank that
took part in several of them has the calls of all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, NamedTuple

from commtrace.event import GroupRow
from commtrace.pytest_plugin.expectation import EXPOSED, SUM, Claim
from commtrace.pytest_plugin.exposed import exposed_shares
from commtrace.schema import HARNESS
from commtrace.tracefile import Trace

CallKey = tuple[str, int, int]
"""Identity of a call: name of its trace, rank, number on that rank."""

_NO_DESCRIPTION = ("", "undefined", "default_pg", "mesh_default")
OWN = "own"
"""Name of the trace of the test's own process."""


class Row(NamedTuple):
    """One call: its key, its columns of the trace, and the description of its group."""

    trace: str
    rank: int
    id: int
    kind: str
    payload_bytes: int
    wire_bytes: int
    dtype: str
    input_shapes: str
    step: int
    phase: str
    region: str
    module: str
    op: str
    group: str
    source_file: str
    source_line: int
    source_function: str
    mesh_axis: str = ""
    description: str = ""
    group_text: str = ""

    @property
    def key(self) -> CallKey:
        """Identity of the call among all calls of the test."""
        return self.trace, self.rank, self.id


_ADDED = ("trace", "mesh_axis", "description", "group_text")
_COLUMNS = tuple(name for name in Row._fields if name not in _ADDED)


class Observed:
    """Calls of a test, participating ranks, the modules that ran (None if unknown), and traces."""

    COLUMNS = Row._fields[3:]

    def __init__(
        self,
        rows: Sequence[Row],
        ranks: Sequence[int],
        modules: frozenset[str] | None,
        traces: Mapping[str, Trace] = MappingProxyType({}),
    ) -> None:
        self.rows = rows
        self.ranks = ranks
        self.modules = modules
        self.traces = traces

    def without(self, keys: frozenset[CallKey]) -> Observed:
        """Return the calls other than those with the given keys."""
        rest = [row for row in self.rows if row.key not in keys]
        return Observed(rest, self.ranks, self.modules, self.traces)

    def on(self, rank: int) -> Observed:
        """Return the calls of a rank."""
        rows = [row for row in self.rows if row.rank == rank]
        return Observed(rows, [rank], self.modules, self.traces)

    def measure(self, claim: Claim) -> dict[int | None, int]:
        """Return a claim's quantity by rank; a sum over ranks has the key None.

        The exposed time covers the whole test. It is -1 if it is unknown.
        """
        if claim.quantity == EXPOSED:
            shares = exposed_shares(self.traces)
            chosen_ranks = self.ranks if claim.ranks in (None, SUM) else claim.ranks
            return {int(rank): shares.get(int(rank), -1) for rank in chosen_ranks or ()}
        chosen = [row for row in self.rows if passes(row, claim)]
        if claim.ranks == SUM:
            return {None: _measured(chosen, claim.quantity)}
        ranks = self.ranks if claim.ranks is None else claim.ranks
        by_rank: dict[int, list[Row]] = {int(rank): [] for rank in ranks}
        for row in chosen:
            if row.rank in by_rank:
                by_rank[row.rank].append(row)
        return {rank: _measured(rows, claim.quantity) for rank, rows in by_rank.items()}


def observed_in(traces: Mapping[str, Trace]) -> Observed:
    """Return the calls of all named traces, except calls of a known test harness.

    The test's own process is not a rank if other ranks ran and it did not communicate.
    """
    rows: list[Row] = []
    ranks: set[int] = set()
    modules: set[str] = set()
    knows_modules = True
    for name, trace in traces.items():
        comm, groups = trace.tables["comm"], _groups(trace)
        where = _COLUMNS.index("group")
        columns = (comm[name] for name in _COLUMNS)
        for carries, *values in zip(comm["carries"], *columns, strict=True):
            if carries != HARNESS:
                rows.append(Row._make((name, *values, *groups.get(values[where], ("", "", "")))))
        if name != OWN or len(traces) == 1 or trace.num_rows("comm"):
            ranks |= {int(rank) for rank in trace.tables["ranks"]["rank"]}
        ops = trace.tables["ops"]
        modules |= {*comm["module"], *ops["module"]}
        knows_modules &= {*ops["rank"]} >= {*comm["rank"]}
    known_modules = frozenset(modules - {""}) if knows_modules else None
    return Observed(rows, sorted(ranks), known_modules, traces)


def _groups(trace: Trace) -> dict[str, tuple[str, str, str]]:
    """Return mesh axis, description and display name of each group, by name."""
    world_size = trace.run["world_size"]
    known = {}
    for row in map(GroupRow._make, trace.rows("groups")):
        text = row.mesh_axis
        if not text and row.description not in _NO_DESCRIPTION:
            text = row.description
        if not text:  # names depend on what ran before, members on the rank
            text = "world" if row.size == world_size else f"{row.size} of {world_size}"
        known[row.name] = (row.mesh_axis, row.description, text)
    return known


def _measured(rows: Sequence[Row], quantity: str) -> int:
    if quantity == "total":
        return len(rows)
    if quantity == "payload":
        return sum(max(row.payload_bytes, 0) for row in rows)
    if quantity == "wire":
        return sum(max(row.wire_bytes, 0) for row in rows)
    if quantity == "largest":
        return max([row.payload_bytes for row in rows], default=0)
    return sum(row.kind == quantity for row in rows)


def passes(row: Row, claim: Claim) -> bool:
    """Return whether a call passes the filters of a claim."""
    return all(
        any(_MATCHES.get(name, _equal)(row, name, value) for value in values)
        for name, values in claim.filters
    )


def unknown_modules(found: Observed, claim: Claim) -> list[str]:
    """Return the module patterns that match no module of the test, if modules are known."""
    if found.modules is None:
        return []
    known = {around for path in found.modules for around in _around(path)}
    patterns = [value for name, values in claim.filters if name == "module" for value in values]
    return [each for each in patterns if each and not _any_match(known, each)]


def _equal(row: Row, name: str, value: Any) -> bool:
    return getattr(row, name) == value


def _like(row: Row, name: str, pattern: str) -> bool:
    return fnmatchcase(getattr(row, name), pattern)


def _of_module(row: Row, _: str, pattern: str) -> bool:
    if not pattern or not row.module:
        return pattern == row.module
    return _any_match(_around(row.module), pattern)


def _of_group(row: Row, _: str, pattern: str) -> bool:
    return _any_match((row.group_text, row.mesh_axis, row.group, row.description), pattern)


def _of_axis(row: Row, _: str, pattern: str) -> bool:
    return fnmatchcase(row.mesh_axis, pattern)


def _of_op(row: Row, _: str, pattern: str) -> bool:
    if not pattern or not row.op:
        return pattern == row.op
    rest = row.op.partition(".")[2]
    return _any_match((row.op, rest, rest.rpartition(".")[0]), pattern)


def _of_source(row: Row, _: str, pattern: str) -> bool:
    return fnmatchcase(row.source_file, pattern) or fnmatchcase(row.source_file, f"*/{pattern}")


_MATCHES = {
    "module": _of_module,
    "group": _of_group,
    "axis": _of_axis,
    "op": _of_op,
    "region": _like,
    "dtype": _like,
    "source": _of_source,
}


def _any_match(names: Iterable[str], pattern: str) -> bool:
    return any(name and fnmatchcase(name, pattern) for name in names)


def _around(path: str) -> list[str]:
    """Return the paths of a module and of the enclosing modules."""
    parts = path.split(".")
    return [".".join(parts[: end + 1]) for end in range(len(parts))]
