"""Merging of the spools of all ranks into one trace.

The plan (see `plan`) decides what needs all ranks. The recording of each rank is then
converted on its own, by the plan: to times on the common clock and the run's names of groups.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from commtrace.event import RankRow
from commtrace.schema import INSTANT, TABLES, Column
from commtrace.tracefile.beside_spool import EXIT_CODE
from commtrace.tracefile.joining.plan import RankPlan, plan_of
from commtrace.tracefile.joining.steps import with_steps_from
from commtrace.tracefile.liveness import ALIVE
from commtrace.tracefile.outline import SpoolOrOutline, end_ns, rank_of
from commtrace.tracefile.spool import RANK_TABLES, Spool
from commtrace.tracefile.trace import (
    Columns,
    ColumnValues,
    StringColumn,
    StringTable,
    Trace,
    table_of,
)


def join(spools: Iterable[Spool], *, path: Path | None = None) -> Trace:
    """Join the spools of many ranks into one trace."""
    ordered = sorted(spools, key=rank_of)
    plan = plan_of(ordered, lambda place, source: with_steps_from(source, ordered[place]))
    strings = StringTable([""])
    ordered = [
        with_steps_from(of_rank.steps_from, spool)
        for of_rank, spool in zip(plan.ranks, ordered, strict=True)
    ]
    parts = [
        converted(spool, of_rank, strings)
        for spool, of_rank in zip(ordered, plan.ranks, strict=True)
    ]
    tables: dict[str, Columns] = {
        name: {
            column.name: _concatenate(column, [part[name][column.name] for part in parts], strings)
            for column in TABLES[name]
        }
        for name in RANK_TABLES
    }
    rank_rows = [
        rank_row(spool, of_rank, num_calls=spool.num_calls, last_ns=end_ns(spool))
        for spool, of_rank in zip(ordered, plan.ranks, strict=True)
    ]
    for name, rows in (("groups", plan.groups), ("ranks", rank_rows), ("sources", plan.sources)):
        tables[name] = table_of(name, rows, strings)
    return Trace(plan.run, {name: tables[name] for name in TABLES}, path)


def converted(
    spool: Spool, plan: RankPlan, strings: StringTable | None = None
) -> dict[str, dict[str, ColumnValues]]:
    """Return the tables of a rank's events, as they are in the run.

    Args:
        spool: the recording, with the steps of the plan's source (see `with_steps_from`).
        plan: the conversion.
        strings: the string table of the result, which is extended; by default the columns keep
            their own.
    """
    return {
        name: {
            column.name: _converted(column, spool.tables[name][column.name], plan, strings)
            for column in TABLES[name]
            if column.name in spool.tables[name]
        }
        for name in RANK_TABLES
        if name in spool.tables
    }


def _converted(
    column: Column, values: ColumnValues, plan: RankPlan, strings: StringTable | None
) -> ColumnValues:
    if not len(values):  # most tables of most ranks, of imports with very many ranks
        return values
    from commtrace.tracefile.arrays import recoded, shifted  # imported late: it loads numpy

    if column.type is str:
        names = plan.group_names if column.name == "group" else {}
        if strings is None and not names and isinstance(values, StringColumn):
            return values
        return recoded(values, StringTable([""]) if strings is None else strings, names)
    return shifted(values, plan.offset_ns) if column.unit == INSTANT else values


def _concatenate(
    column: Column, parts: Sequence[ColumnValues], strings: StringTable
) -> ColumnValues:
    joined = array("d" if column.type is float else "q")
    for part in parts:
        joined.extend(part.codes if isinstance(part, StringColumn) else part)
    return StringColumn(joined, strings.strings) if column.type is str else joined


def rank_row(recording: SpoolOrOutline, plan: RankPlan, *, num_calls: int, last_ns: int) -> Any:
    """Return the row of table `ranks`, from the number of calls and the end on the rank's clock."""
    facts, offset = recording.facts, plan.offset_ns
    return RankRow(
        rank=facts["rank"],
        host=facts["host"],
        pid=facts["pid"],
        device=facts["device"],
        start_ns=facts["start_ns"] + offset,
        end_ns=last_ns + offset,
        clock_offset_ns=offset,
        num_events=num_calls,
        num_dropped=facts.get("num_dropped", 0),
        complete=facts.get("complete", False) and not recording.is_truncated,
        num_ops_dropped=facts.get("num_ops_dropped", 0),
        num_fingerprints_dropped=facts.get("num_fingerprints_dropped", -1),
        alive_ns=facts[ALIVE] + offset if ALIVE in facts else -1,
        clock_error_ns=plan.clock_error_ns,
        boot=facts["boot"],
        epoch_ns=facts["epoch_ns"],
        exit_code=facts.get(EXIT_CODE, -1),
    )
