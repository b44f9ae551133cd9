"""A trace is validated against the schema: impossible values are named, recorded values pass."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from commtrace.errors import InvalidTraceError
from commtrace.event import (
    ActionRow,
    CommunicatorRow,
    FingerprintRow,
    HostEventRow,
    KernelRow,
    LaterWaitRow,
    RemovedCallsRow,
    SourceRow,
    SyncRow,
)
from commtrace.schema import MAX_RANKS, MOST_INSTANT_NS, TABLES, Column
from commtrace.tracefile import Trace, read_trace, trace_of_rows
from commtrace.tracefile.validate import validated
from tests.commtrace.analyze.rows import START_NS, call, op, rank_row, step, trace_of
from tests.commtrace.synthetic import write_synthetic_run

FLOATS = [column for column in TABLES["fingerprints"] if column.type is float]


def sound(**changes: Any) -> Trace:
    comm = [
        call(rank=rank, id=n, seq=n, at=100 * n, until=100 * n + 50, **changes)
        for rank in (0, 1)
        for n in (0, 1)
    ]
    ops = [op(rank=0, id=0, at=0, duration_ns=50), op(rank=0, id=1, at=1, parent=0)]
    kernels = [
        KernelRow(rank=0, id=n, category="compute", start_ns=START_NS + n, duration_ns=1)
        for n in (0, 1)
    ]
    trace = trace_of(comm, ops=ops, kernels=kernels, steps=[step(0, 0, 0, 500), step(1, 0, 0, 500)])
    rows: dict[str, Any] = {name: list(trace.rows(name)) for name in TABLES}
    rows["fingerprints"] = [
        FingerprintRow(rank=rank, id=0, **{column.name: 0.0 for column in FLOATS})
        for rank in (0, 1)
    ]
    rows["pipeline_actions"] = [ActionRow(rank=rank, id=0, action="loss") for rank in (0, 1)]
    rows["later_waits"] = [LaterWaitRow(rank=rank, id=0, call_id=0) for rank in (0, 1)]
    rows["syncs"] = [SyncRow(rank=rank, id=0, kind="stream_wait") for rank in (0, 1)]
    rows["host_events"] = [HostEventRow(rank=rank, id=0, kind="exception") for rank in (0, 1)]
    rows["communicators"] = [CommunicatorRow(rank, "g", START_NS, "dead", 0) for rank in (0, 1)]
    rows["removed_calls"] = [RemovedCallsRow(rank, "g", 3, 3, 17) for rank in (0, 1)]
    return trace_of_rows(trace.run, rows | {"sources": [SourceRow("a.py", 3, "reduce(x)")]})


def with_column(table: str, column: str, values: Sequence[Any]) -> Trace:
    trace = sound()
    names = [each.name for each in TABLES[table]]
    rows = [list(row) for row in trace.rows(table)]
    for row, value in zip(rows, values, strict=False):
        row[names.index(column)] = value
    all_rows: dict[str, Any] = {name: list(trace.rows(name)) for name in TABLES}
    return trace_of_rows(trace.run, all_rows | {table: [tuple(row) for row in rows]})


def why_not(trace: Trace) -> str:
    with pytest.raises(InvalidTraceError) as raised:
        validated(trace)
    return str(raised.value)


def test_what_is_recorded_passes(tmp_path: Path) -> None:
    assert validated(sound()) == sound()
    read_trace(write_synthetic_run(tmp_path / "run.json"))


INTEGERS = [
    pytest.param(table, column, id=f"{table}.{column.name}")
    for table, columns in TABLES.items()
    for column in columns
    if column.type in (int, bool)
]


@pytest.mark.parametrize(("table", "column"), INTEGERS)
def test_an_integer_beyond_the_bounds_of_its_column_is_named(table: str, column: Column) -> None:
    lowest = 0 if column.type is bool else column.least
    for value in (lowest - 1, column.most + 1):
        text = why_not(with_column(table, column.name, [value]))
        assert f"at: tables.{table}.columns.{column.name}" in text
        assert f"{value} in row 0" in text


def test_bounds_follow_from_the_unit() -> None:
    columns = {column.name: column for column in TABLES["comm"]}
    assert (columns["rank"].least, columns["rank"].most) == (0, MAX_RANKS - 1)
    assert (columns["issue_ns"].least, columns["issue_ns"].most) == (-1, MOST_INSTANT_NS)


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("comm", "phase", "sideways"),
        ("comm", "input_shapes", "[8,x]"),
        ("comm", "output_shapes", "8,16"),
        ("comm", "candidates", "not json"),
        ("comm", "candidates", '[["f32[8] tp:R", "cheap"]]'),
        ("ops", "level", "deep"),
        ("ops", "needs", "1,c"),
        ("ops", "shapes", "[8,16"),
        ("syncs", "kind", "nap"),
        ("host_events", "kind", "lunch"),
        ("pipeline_actions", "action", "sideways"),
        ("comm", "direction", "sideways"),
        ("communicators", "state", "asleep"),
        ("groups", "ranks", "0,0"),
        ("groups", "ranks", "0,1,x"),
        ("groups", "ranks", f"0,{MAX_RANKS}"),
    ],
)
def test_a_string_of_another_form_is_named(table: str, column: str, value: str) -> None:
    text = why_not(with_column(table, column, [value]))
    assert f"at: tables.{table}.columns.{column}" in text


@pytest.mark.parametrize(
    ("table", "column", "values", "found"),
    [
        ("comm", "id", [1, 1], "1 duplicate rows, such as rank 0, id 1"),
        ("ranks", "rank", [1, 1], "1 duplicate rows, such as rank 1"),
        ("comm", "complete_ns", [START_NS - 1], "where issue_ns is"),
        ("ranks", "end_ns", [START_NS - 1], "where start_ns is"),
        ("steps", "end_ns", [START_NS - 1], "where start_ns is"),
        ("ops", "parent", [0], "where parent is 0"),
        ("comm", "data_call_id", [0], "where data_call_id is 0"),
        ("comm", "wait_begin_ns", [START_NS - 1], "where issue_ns is"),
        ("comm", "group", ["strange"], "'strange', which is not in table groups"),
        ("groups", "size", [3], "3 in row 0, which has 2 ranks"),
    ],
)
def test_rows_that_contradict_each_other_are_named(
    table: str, column: str, values: list[Any], found: str
) -> None:
    assert found in why_not(with_column(table, column, values))


def test_all_wrong_columns_are_named_at_once() -> None:
    text = why_not(with_column("comm", "blocked_ns", [-5, -7]))
    assert "-5 in row 0 and 1 more rows, which is not in -1 to" in text
    both = sound(call_ns=-2, blocked_ns=-2)
    assert "columns.call_ns" in why_not(both)
    assert "columns.blocked_ns" in why_not(both)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("world_size", 10**9), ("world_size", "2"), ("world_size", True), ("missing_ranks", [1, 1]),
        ("missing_ranks", 3), ("command", 7), ("lacks", "all"),
    ],
)  # fmt: skip
def test_a_fact_of_another_type_is_named(name: str, value: Any) -> None:
    assert f"at: run.{name}" in why_not(trace_of([], run={name: value}))


def test_halves_of_surrogate_pairs_are_written_out() -> None:
    trace = validated(trace_of([call(reason="\ud800")], run={"command": "\udcff.py"}))
    assert trace.tables["comm"]["reason"][0] == "\\ud800"
    assert trace.run["command"] == "\\udcff.py"


def test_rows_may_come_in_any_order() -> None:
    rows = [call(rank=rank, id=n) for n in (2, 0, 1) for rank in (1, 0)]
    validated(trace_of(rows, ranks=[rank_row(1), rank_row(0)]))
