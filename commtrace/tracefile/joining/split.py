"""Splitting of a trace back into the recordings of its ranks, to join them with other recordings.

    join([*spools_of(read_trace("node0.json")), read_spool("rank-00002.spool")])

It undoes what joining did: times are on the rank's own clock again, groups have the names of the
rank, and steps that were found are separate from marked steps. A run file before format version 5
does not state the clocks of its ranks. They then count as a single system, aligned as in the file.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from commtrace.event import GroupRow, RankRow, SourceRow
from commtrace.schema import INSTANT, TABLES, Column
from commtrace.tracefile.beside_spool import EXIT_CODE
from commtrace.tracefile.joining.steps import RECORDING, STEPS_FROM
from commtrace.tracefile.liveness import ALIVE
from commtrace.tracefile.sources import FACT
from commtrace.tracefile.spool import FOUND_STEPS, RANK_TABLES, STEP_SOURCES, Spool
from commtrace.tracefile.trace import (
    Columns,
    ColumnValues,
    StringColumn,
    StringTable,
    Trace,
    table_of,
)

if TYPE_CHECKING:
    import numpy as np

LEFT_OUT = "left_out_spools"
"""Name of the fact of a run that lists the files of earlier runs beside it."""
ONE_CLOCK = "one clock"
"""Fact `clock` of a run whose ranks share a clock."""
CLOCK_ERROR = "clock_error_ns"
"""Name of the fact of a spool that bounds the error of its times within the same clock."""
_OF_JOINING = (
    "missing_ranks",
    "torn_ranks",
    "running_ranks",
    "read_ns",
    "clock",
    STEPS_FROM,
    LEFT_OUT,
)


def spools_of(trace: Trace) -> list[Spool]:
    """Return the recording of each rank of a trace, in ascending order of ranks."""
    rows = [RankRow(*row) for row in trace.rows("ranks")]
    groups = [GroupRow(*row) for row in trace.rows("groups")]
    run = {name: fact for name, fact in trace.run.items() if name not in _OF_JOINING}
    sources = [list(SourceRow(*row)) for row in trace.rows("sources")]
    parts = {name: _by_rank(trace.tables[name]) for name in RANK_TABLES}
    clock = _clock_of(trace, rows)
    spools = []
    for number, row in enumerate(rows):
        facts = _facts(row, run, clock, trace.run.get("clock", ""))
        if not number:
            facts[FACT] = sources
        if trace.run.get(STEPS_FROM) == RECORDING:
            facts["is_one_step"] = True
        tables = {
            name: _part(TABLES[name], trace.tables[name], places.get(row.rank, ()), row)
            for name, places in parts.items()
        }
        tables["groups"] = _groups(groups, row.rank, tables)
        spools.append(Spool(facts, _with_found_steps(trace, tables), False, trace.path))
    return spools


def _states_clock(row: Any) -> bool:
    return bool(row.boot) and row.epoch_ns >= 0


def _clock_of(trace: Trace, rows: Sequence[Any]) -> str:
    """Return an identity of the common clock of a trace that does not state its ranks' clocks."""
    first = (rows[0].host, rows[0].pid, rows[0].start_ns) if rows else ()
    return " ".join(map(str, (trace.run.get("created", ""), *first)))


def _facts(row: Any, run: Mapping[str, Any], clock: str, run_clock: str) -> dict[str, Any]:
    is_known = _states_clock(row)
    offset = row.clock_offset_ns if is_known else 0
    is_certain = is_known or run_clock == ONE_CLOCK
    facts = {} if is_certain else {CLOCK_ERROR: row.clock_error_ns}
    if row.num_fingerprints_dropped >= 0:
        facts["num_fingerprints_dropped"] = row.num_fingerprints_dropped
    if row.alive_ns >= 0:
        facts[ALIVE] = row.alive_ns - offset
    if row.exit_code != -1:
        facts[EXIT_CODE] = row.exit_code
    return facts | {
        "rank": row.rank,
        "host": row.host,
        "pid": row.pid,
        "boot": row.boot if is_known else clock,
        "epoch_ns": row.epoch_ns if is_known else 0,
        "device": row.device,
        "start_ns": row.start_ns - offset,
        "end_ns": row.end_ns - offset,
        "complete": row.complete,
        "num_dropped": row.num_dropped,
        "num_ops_dropped": row.num_ops_dropped,
        "run": dict(run),
    }


def _part(
    columns: tuple[Column, ...], table: Columns, places: Sequence[int] | np.ndarray, row: Any
) -> dict[str, ColumnValues]:
    """Return the rows of a rank, on its own clock."""
    offset = row.clock_offset_ns if _states_clock(row) else 0
    return {column.name: _values(column, table[column.name], places, offset) for column in columns}


def _values(
    column: Column, values: ColumnValues, places: Sequence[int] | np.ndarray, offset: int
) -> ColumnValues:
    from commtrace.tracefile.arrays import shifted, taken  # imported late: it loads numpy

    own = taken(values, places)
    return shifted(own, -offset) if column.unit == INSTANT else own


def _groups(
    groups: Sequence[Any], rank: int, tables: dict[str, dict[str, ColumnValues]]
) -> dict[str, ColumnValues]:
    """Return the groups of a rank under its own names, and rename the groups of its calls."""
    from commtrace.tracefile.arrays import recoded

    comm = tables["comm"]
    known = StringTable()
    recoded(comm["group"], known)
    used = set(known.strings)
    own = [row for row in groups if row.name in used or str(rank) in row.ranks.split(",")]
    name_of = {row.name: row.name.removesuffix(f" [{row.ranks}]") for row in own}
    strings = StringTable([""])
    comm["group"] = recoded(comm["group"], strings, name_of)
    return dict(table_of("groups", [row._replace(name=name_of[row.name]) for row in own], strings))


def _with_found_steps(
    trace: Trace, tables: dict[str, dict[str, ColumnValues]]
) -> dict[str, dict[str, ColumnValues]]:
    """Move steps that were found while recording to the table of those."""
    source = trace.run.get(STEPS_FROM)
    if source not in STEP_SOURCES:
        return tables
    steps = tables["steps"]
    strings = StringTable([source])
    sources = StringColumn(array("q", [0]) * len(steps["rank"]), strings.strings)
    empty: dict[str, ColumnValues] = {name: array("q") for name in steps}
    return {**tables, FOUND_STEPS: {"source": sources, **steps}, "steps": empty}


def _by_rank(table: Columns) -> dict[int, np.ndarray]:
    """Return the places of each rank's rows."""
    import numpy as np

    from commtrace.tracefile.arrays import view_of

    ranks = view_of(table["rank"])
    order = np.argsort(ranks, kind="stable")
    found, starts = np.unique(ranks[order], return_index=True)
    return dict(zip(found.tolist(), np.split(order, starts[1:]), strict=True)) if len(found) else {}
