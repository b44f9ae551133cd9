"""Merging of the spools of all ranks into one trace.

Ranks are in ascending order, whatever the order of the files. Their clocks are aligned (see
`clocks`): a spool states its monotonic clock (`boot`, the identity of the running system) and that
clock's offset from wall time. `run["missing_ranks"]` lists ranks without a spool. Group names that
denote several groups are disambiguated: groups of different ranks, or recreated ones (see
`generations`). `run["steps_from"]` is the source of the steps (see `steps`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from commtrace.errors import TraceError
from commtrace.event import GroupRow, RankRow
from commtrace.schema import INSTANT, TABLES, Column
from commtrace.tracefile.clocks import Alignment, align
from commtrace.tracefile.generations import base_of, generations
from commtrace.tracefile.sources import joined
from commtrace.tracefile.split import CLOCK_ERROR, ONE_CLOCK, RANK_TABLES
from commtrace.tracefile.spool import Spool
from commtrace.tracefile.steps import STEPS_FROM, steps_from, with_steps_from
from commtrace.tracefile.trace import (
    Columns,
    ColumnValues,
    StringColumn,
    StringTable,
    Trace,
    table_of,
)
from commtrace.units import text_of_duration


def join(spools: Iterable[Spool], *, path: Path | None = None) -> Trace:
    """Join the spools of many ranks into one trace."""
    ordered = sorted(spools, key=rank_of)
    _refuse_doubles(ordered)
    source = steps_from(ordered)
    ordered = [with_steps_from(source, spool) for spool in ordered]
    strings = StringTable([""])
    group_rows, group_names = _join_groups(ordered)
    alignments = [
        _with_own_error(alignment, spool)
        for alignment, spool in zip(align(ordered, group_names), ordered, strict=True)
    ]
    parts = [
        _part(spool, alignment.offset_ns, names, strings)
        for spool, alignment, names in zip(ordered, alignments, group_names, strict=True)
    ]
    tables: dict[str, Columns] = {
        name: {
            column.name: _concatenate(column, [part[name][column.name] for part in parts], strings)
            for column in TABLES[name]
        }
        for name in RANK_TABLES
    }
    rank_rows = [
        _rank_row(spool, part, alignment)
        for spool, part, alignment in zip(ordered, parts, alignments, strict=True)
    ]
    source_rows = joined(spool.facts for spool in ordered)
    for name, rows in (("groups", group_rows), ("ranks", rank_rows), ("sources", source_rows)):
        tables[name] = table_of(name, rows, strings)
    run = _run_facts(ordered, alignments)
    if "imported_from" not in run:
        run[STEPS_FROM] = source
    return Trace(run, {name: tables[name] for name in TABLES}, path)


def _with_own_error(alignment: Alignment, spool: Spool) -> Alignment:
    """Add the error that the times had already in the run file that a spool is a part of."""
    own = spool.facts.get(CLOCK_ERROR, 0)
    is_known = min(own, alignment.error_ns) >= 0
    return replace(alignment, error_ns=own + alignment.error_ns if is_known else -1)


def start_ns(spool: Spool) -> int:
    """Return the beginning of a spool's recording."""
    return spool.facts["start_ns"]


def end_ns(spool: Spool) -> int:
    """Return the end of a spool's recording, or the time of its last event."""
    return spool.facts.get("end_ns") or _last_instant(spool.tables, spool.facts["start_ns"])


def rank_of(spool: Spool) -> int:
    """Return the rank that a spool has recorded."""
    return spool.facts["rank"]


def _refuse_doubles(spools: Sequence[Spool]) -> None:
    seen: dict[int, Spool] = {}
    for spool in spools:
        other = seen.setdefault(rank_of(spool), spool)
        if other is not spool:
            raise TraceError(
                "cannot merge the spools",
                found=f"two of rank {rank_of(spool)}: {other.path} and {spool.path}",
                why="they are from different recordings",
                attempt="move one of them to another folder",
            )


def _join_groups(spools: Sequence[Spool]) -> tuple[list[Any], list[dict[str, str]]]:
    """Return the rows of table `groups`, and for each spool the names that replace its own.

    Of groups created one after the other under one name, the second is `0#2`. If groups of
    different ranks still share a name, the ranks are appended: `1 [0,1]`.
    """
    rows_of = [[GroupRow(*row) for row in _rows(spool, "groups")] for spool in spools]
    numbers = generations([spool.tables for spool in spools])
    keys = [
        [(base_of(row.name), number.get(row.name, 1)) for row in rows]
        for rows, number in zip(rows_of, numbers, strict=True)
    ]
    meanings: dict[tuple[str, int], set[str]] = {}
    for row, key in zip(chain(*rows_of), chain(*keys), strict=True):
        meanings.setdefault(key, set()).add(row.ranks)
    joined: dict[str, Any] = {}
    names: list[dict[str, str]] = []
    for rows, of_spool in zip(rows_of, keys, strict=True):
        new_names = {}
        for row, (base, number) in zip(rows, of_spool, strict=True):
            name = f"{base}#{number}" if number > 1 else base
            if len(meanings[base, number]) > 1:
                name = f"{name} [{row.ranks}]"
            if name != row.name:
                new_names[row.name] = name
            if name not in joined or row.mesh_axis:  # not every rank knows the axis
                joined[name] = row._replace(name=name)
        names.append(new_names)
    return list(joined.values()), names


def _rows(spool: Spool, table: str) -> Iterable[tuple[Any, ...]]:
    return zip(*spool.tables[table].values(), strict=True)


def _part(
    spool: Spool, offset: int, group_names: Mapping[str, str], strings: StringTable
) -> dict[str, dict[str, ColumnValues]]:
    """Return a spool's tables on the common clock and string table."""
    return {
        name: {
            column.name: _shifted(column, spool.tables[name][column.name], offset)
            if column.type is not str
            else _renamed(
                spool.tables[name][column.name],
                group_names if column.name == "group" else {},
                strings,
            )
            for column in TABLES[name]
        }
        for name in RANK_TABLES
    }


def _shifted(column: Column, values: ColumnValues, offset: int) -> ColumnValues:
    if not offset or column.unit != INSTANT:
        return values
    missing = column.missing
    return array("q", [value if value == missing else value + offset for value in values])


def _renamed(values: ColumnValues, names: Mapping[str, str], strings: StringTable) -> ColumnValues:
    if not isinstance(values, StringColumn):
        return StringColumn(strings.codes(values), strings.strings)
    new = {}
    for code in dict.fromkeys(values.codes):
        string = values.strings[code]
        new[code] = strings.code(names.get(string, string))
    return StringColumn(array("q", [new[code] for code in values.codes]), strings.strings)


def _concatenate(
    column: Column, parts: Sequence[ColumnValues], strings: StringTable
) -> ColumnValues:
    joined = array("d" if column.type is float else "q")
    for part in parts:
        joined.extend(part.codes if isinstance(part, StringColumn) else part)
    return StringColumn(joined, strings.strings) if column.type is str else joined


def _rank_row(spool: Spool, part: Mapping[str, Columns], alignment: Alignment) -> Any:
    facts, offset = spool.facts, alignment.offset_ns
    last = end_ns(spool)
    return RankRow(
        rank=facts["rank"],
        host=facts["host"],
        pid=facts["pid"],
        device=facts["device"],
        start_ns=facts["start_ns"] + offset,
        end_ns=last + offset,
        clock_offset_ns=offset,
        num_events=len(part["comm"]["rank"]),
        num_dropped=facts.get("num_dropped", 0),
        complete=facts.get("complete", False) and not spool.is_truncated,
        num_ops_dropped=facts.get("num_ops_dropped", 0),
        clock_error_ns=alignment.error_ns,
        boot=facts["boot"],
        epoch_ns=facts["epoch_ns"],
    )


def _last_instant(part: Mapping[str, Columns], default: int) -> int:
    instants = [
        max(part[name][column.name], default=default)
        for name in RANK_TABLES
        for column in TABLES[name]
        if column.unit == INSTANT
    ]
    return max([default, *instants])


def _run_facts(spools: Sequence[Spool], alignments: Sequence[Alignment]) -> dict[str, Any]:
    """Return the facts of the first rank's spool, plus those that follow from all spools."""
    world_size = max(
        max(spool.facts["run"].get("world_size", 1) for spool in spools), 1 + rank_of(spools[-1])
    )
    present = {rank_of(spool) for spool in spools}
    return spools[0].facts["run"] | {
        "world_size": world_size,
        "missing_ranks": sorted(set(range(world_size)) - present),
        "torn_ranks": [
            rank_of(spool) for spool in spools if not spool.facts.get("complete", False)
        ],
        "clock": _clock(spools, alignments),
    }


def _clock(spools: Sequence[Spool], alignments: Sequence[Alignment]) -> str:
    errors = [alignment.error_ns for alignment in alignments]
    if len({spool.facts["boot"] for spool in spools}) == 1 and not any(errors):
        return ONE_CLOCK
    if min(errors) < 0:
        return "wall clocks of several hosts"
    return f"clocks of several hosts, aligned to {text_of_duration(max(errors))}"
