"""Merging of the spools of all ranks into one trace.

Ranks are in ascending order, whatever the order of the files. Their clocks are aligned (see
`clocks`): a spool states its monotonic clock (`boot`, the identity of the running system) and that
clock's offset from wall time. `run["missing_ranks"]` lists ranks without a spool, and
`run["left_out_spools"]` the files that an earlier run left in the folder. Group names that denote
several groups are disambiguated: groups of different ranks, or recreated ones (see `generations`).
`run["steps_from"]` is the source of the steps (see `steps`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from commtrace.errors import EmptyTraceError, TraceError, UnbegunSpoolError
from commtrace.event import GroupRow, RankRow
from commtrace.schema import INSTANT, TABLES, Column
from commtrace.tracefile.clocks import Alignment, align
from commtrace.tracefile.generations import base_of, generations
from commtrace.tracefile.reading import reading
from commtrace.tracefile.run_file import write_trace
from commtrace.tracefile.sources import joined
from commtrace.tracefile.spool import SPOOL_SUFFIX, Spool, read_spool
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

LEFT_OUT = "left_out_spools"
_RANK_TABLES = ("comm", "ops", "kernels", "steps")


def merge_spools(folder: Path | str, out_path: Path | str) -> Path:
    """Merge the spools of `folder` into the run file `out_path` and return that path.

    A rank that was killed before it had written anything is one of the missing ranks.

    Raises:
        EmptyTraceError: the folder holds no spools.
        TraceError: a file is not a spool.
    """
    return write_trace(read_spools(Path(folder)), out_path)


def read_spools(folder: Path) -> Trace:
    """Read a folder of spools as the trace that `merge_spools` would write."""
    summary = f"cannot read the trace {folder}"
    with reading(summary):
        from commtrace.tracefile.validate import validated  # imported late, since it loads numpy

        if not folder.is_dir():
            raise TraceError(
                summary,
                found="a file" if folder.exists() else "no such folder",
                why=f"spools are *{SPOOL_SUFFIX} files of one folder",
                attempt="pass the folder of the interrupted run, run.json.spools",
            )
        paths = sorted(folder.glob(f"*{SPOOL_SUFFIX}"))
        if not paths:
            raise EmptyTraceError(
                summary,
                found=f"a folder without a *{SPOOL_SUFFIX} file",
                why="every recorded rank writes a spool",
                attempt="record the program again, or pass another folder",
            )
        spools, left_out = _latest(_begun(paths))
        trace = join(spools, path=folder)
        run = {**trace.run, LEFT_OUT: left_out} if left_out else trace.run
        return validated(replace(trace, run=run), summary)


def _begun(paths: Sequence[Path]) -> list[Spool]:
    """Read the spools that hold a batch; a rank killed before its first counts as missing."""
    spools, failures = [], []
    for path in paths:
        try:
            spools.append(read_spool(path))
        except (EmptyTraceError, UnbegunSpoolError) as error:
            failures.append(error)
    if not spools:
        raise failures[0]
    return spools


def _latest(spools: Sequence[Spool]) -> tuple[list[Spool], list[str]]:
    """Split off the spools of an earlier run and return the file names of those.

    A repeated rank shows that the earlier run is over: spools that ended before belong to it.
    """
    last = {_rank(spool): _start_ns(spool) for spool in sorted(spools, key=_start_ns)}
    spools = [spool for spool in spools if not _has_ranks(spool, last[_rank(spool)])]
    again = {_rank(spool) for spool in spools if _start_ns(spool) < last[_rank(spool)]}
    begun = min((last[rank] for rank in again), default=0)
    latest, left_out = [], []
    for spool in spools:
        newest = last[_rank(spool)]
        is_earlier = _end_ns(spool) < (newest if _start_ns(spool) < newest else begun)
        (left_out if is_earlier else latest).append(spool)
    return latest, sorted(spool.path.name for spool in left_out if spool.path is not None)


def _has_ranks(spool: Spool, last_start_ns: int) -> bool:
    """Return whether a spool's process communicated nothing and started the rank itself."""
    is_silent = spool.facts["run"].get("process_group") == "none"
    return is_silent and _start_ns(spool) < last_start_ns <= _end_ns(spool)


def _start_ns(spool: Spool) -> int:
    return spool.facts["start_ns"]


def _end_ns(spool: Spool) -> int:
    """Return the end of a spool's recording, or the time of its last event."""
    return spool.facts.get("end_ns") or _last_instant(spool.tables, spool.facts["start_ns"])


def join(spools: Iterable[Spool], *, path: Path | None = None) -> Trace:
    """Join the spools of many ranks into one trace."""
    ordered = sorted(spools, key=_rank)
    _refuse_doubles(ordered)
    source = steps_from(ordered)
    ordered = [with_steps_from(source, spool) for spool in ordered]
    strings = StringTable([""])
    group_rows, group_names = _join_groups(ordered)
    alignments = align(ordered, group_names)
    parts = [
        _part(spool, alignment.offset_ns, names, strings)
        for spool, alignment, names in zip(ordered, alignments, group_names, strict=True)
    ]
    tables: dict[str, Columns] = {
        name: {
            column.name: _concatenate(column, [part[name][column.name] for part in parts], strings)
            for column in TABLES[name]
        }
        for name in _RANK_TABLES
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


def _rank(spool: Spool) -> int:
    return spool.facts["rank"]


def _refuse_doubles(spools: Sequence[Spool]) -> None:
    seen: dict[int, Spool] = {}
    for spool in spools:
        other = seen.setdefault(_rank(spool), spool)
        if other is not spool:
            raise TraceError(
                "cannot merge the spools",
                found=f"two of rank {_rank(spool)}: {other.path} and {spool.path}",
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
        for name in _RANK_TABLES
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
    last = _end_ns(spool)
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
    )


def _last_instant(part: Mapping[str, Columns], default: int) -> int:
    instants = [
        max(part[name][column.name], default=default)
        for name in _RANK_TABLES
        for column in TABLES[name]
        if column.unit == INSTANT
    ]
    return max([default, *instants])


def _run_facts(spools: Sequence[Spool], alignments: Sequence[Alignment]) -> dict[str, Any]:
    """Return the facts of the first rank's spool, plus those that follow from all spools."""
    world_size = max(
        max(spool.facts["run"].get("world_size", 1) for spool in spools), 1 + _rank(spools[-1])
    )
    present = {_rank(spool) for spool in spools}
    return spools[0].facts["run"] | {
        "world_size": world_size,
        "missing_ranks": sorted(set(range(world_size)) - present),
        "torn_ranks": [_rank(spool) for spool in spools if not spool.facts.get("complete", False)],
        "clock": _clock(spools, alignments),
    }


def _clock(spools: Sequence[Spool], alignments: Sequence[Alignment]) -> str:
    errors = [alignment.error_ns for alignment in alignments]
    if len({spool.facts["boot"] for spool in spools}) == 1:
        return "one clock"
    if min(errors) < 0:
        return "wall clocks of several hosts"
    return f"clocks of several hosts, aligned to {text_of_duration(max(errors))}"
