"""Tables that statements see.

    comm, ops, steps, ...     tables of the trace
    waits                     wait, transfer and last rank of each call
    calls                     table `comm` with the mesh axis and these
    by_module, overlap, ...   tables of the analyses, computed when a statement names them

Integers and floats that are unknown are NULL; a text that is unknown or does not apply is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from commtrace.analyze.catalog import CATALOG
from commtrace.analyze.measures.arrivals import COLUMNS as ARRIVALS
from commtrace.analyze.measures.arrivals import arrivals
from commtrace.analyze.run.analysis import Analysis
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.traffic.calls import COLUMNS as OF_CALLS
from commtrace.schema import MAY_BE_NEGATIVE, TABLES, Column

WAITS, CALLS = "waits", "calls"
_OF_CALLS = (WAITS, CALLS)
_LISTS = ("calls", "activity")
"""Analyses with a row for each call, whose values are in table `calls`."""

_ABOUT = {
    "comm": "calls of communication, as recorded",
    "ops": "operators, as recorded",
    "kernels": "work of devices",
    "fingerprints": "sketches and norms of tensors",
    "host_events": "compilations, exceptions, pauses and other events of hosts",
    "pipeline_actions": "computations of pipeline stages",
    "later_waits": "further waits for calls that were waited for before",
    "syncs": "events of streams, and waits of hosts for devices",
    "communicators": "states of members of communicators",
    "removed_calls": "calls that were not kept",
    "groups": "process groups",
    "ranks": "ranks, with their hosts and clocks",
    "steps": "steps of each rank",
    "sources": "source code of functions that communicate",
    WAITS: "wait and transfer of each call, and the rank that arrived last",
    CALLS: "comm with the mesh axis, wait, transfer and last rank of each call",
}


@dataclass(frozen=True, slots=True)
class SqlTable:
    """A table that statements can name.

    Attributes:
        name: its name.
        about: what a row is, or the question that the table answers.
        columns: its columns, with type, unit and meaning.
        rows: computes it for a run; None for a view of other tables.
        view: statement of a view; empty for others.
        needs: tables that the view reads.
    """

    name: str
    about: str
    columns: tuple[Column, ...]
    rows: Callable[[Frames], pd.DataFrame] | None = None
    view: str = ""
    needs: tuple[str, ...] = ()


def _of_trace(name: str) -> SqlTable:
    return SqlTable(name, _ABOUT[name], TABLES[name], lambda frames: getattr(frames, name))


def _of_analysis(analysis: Analysis) -> SqlTable:
    return SqlTable(analysis.name, analysis.question, analysis.columns, analysis.function)


def _waits(frames: Frames) -> pd.DataFrame:
    return pd.concat(frames.by_ranks(arrivals))


_VIEW_OF_CALLS = """
    SELECT comm.*, coalesce(mesh_axis, '') AS mesh_axis, wait_ns, transfer_ns, last_rank
    FROM {0}comm AS comm
    LEFT JOIN (SELECT name, mesh_axis FROM {0}groups) AS of_group ON of_group.name = comm."group"
    LEFT JOIN {0}waits AS waits ON waits.rank = comm.rank AND waits.id = comm.id
"""

SQL_TABLES: dict[str, SqlTable] = {
    each.name: each
    for each in (
        *map(_of_trace, TABLES),
        SqlTable(WAITS, _ABOUT[WAITS], ARRIVALS, _waits),
        SqlTable(
            CALLS, _ABOUT[CALLS], OF_CALLS, view=_VIEW_OF_CALLS, needs=("comm", "groups", WAITS)
        ),
        *(_of_analysis(each) for each in CATALOG.values() if each.name not in _LISTS),
    )
}
"""Relations by name: tables of the trace, of each call, and of analyses."""


def selected(columns: Sequence[Column], given: Sequence[str]) -> str:
    """Return the list of a SELECT with all columns of a table, unknown values as NULL.

    Args:
        columns: the columns.
        given: names of those that the source has; others are unknown.
    """
    known = {*given}
    return ", ".join(
        f'{_value_of(each)} AS "{each.name}"' if each.name in known else _unknown(each)
        for each in columns
    )


def _value_of(column: Column) -> str:
    name = f'"{column.name}"'
    if column.type is str:
        return f"coalesce({name}::VARCHAR, '')"
    if column.type is float:
        return f"CASE WHEN isnan({name}) THEN NULL ELSE {name} END"
    is_value = column.type is bool or column.minus or column.name in MAY_BE_NEGATIVE
    return name if is_value or column.least < -1 else f"nullif({name}, -1)"


def _unknown(column: Column) -> str:
    types = {int: "BIGINT", float: "DOUBLE", bool: "BOOLEAN", str: "VARCHAR"}
    value = "''" if column.type is str else "NULL"
    return f'{value}::{types[column.type]} AS "{column.name}"'
