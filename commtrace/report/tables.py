"""The tables of the page, in the form that its script takes them.

    {"name", "title", "question", "columns": [{"name", "title", "unit", "type", "meaning"}],
     "shown": [names], "num_rows", "num_left_out",
     "data": {column: [values]} or, for text, {column: {"strings", "codes"}}}

A point in time becomes nanoseconds since the run began, for a browser's numbers are exact to 2**53
only; what is not known becomes null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from commtrace.analyze import CATALOG, Analysis, Frames
from commtrace.schema import INSTANT, Column

MAX_CALLS = 20_000

SHOWN: dict[str, tuple[str, ...]] = {
    "by_kind": (
        "kind",
        "num_calls",
        "calls_per_step",
        "payload_bytes",
        "wire_bytes",
        "blocked_ns",
        "share",
        "algbw_bytes_per_s",
        "busbw_bytes_per_s",
    ),
    "by_phase": (
        "phase",
        "num_calls",
        "calls_per_step",
        "payload_bytes",
        "wire_bytes",
        "blocked_ns",
        "share",
        "busbw_bytes_per_s",
    ),
    "by_module": (
        "module",
        "module_class",
        "num_calls",
        "own_num_calls",
        "wire_bytes",
        "own_wire_bytes",
        "blocked_ns",
        "own_blocked_ns",
        "share",
    ),
    "by_op": (
        "op",
        "kind",
        "num_calls",
        "calls_per_step",
        "payload_bytes",
        "wire_bytes",
        "blocked_ns",
        "share",
        "busbw_bytes_per_s",
    ),
    "by_step": (
        "step",
        "duration_ns",
        "num_calls",
        "payload_bytes",
        "wire_bytes",
        "blocked_ns",
        "share",
    ),
    "by_rank": (
        "rank",
        "host",
        "num_calls",
        "wire_bytes",
        "blocked_ns",
        "share",
        "wait_ns",
        "caused_wait_ns",
        "num_last",
    ),
    "calls": (
        "rank",
        "id",
        "kind",
        "step",
        "phase",
        "module",
        "op",
        "mesh_axis",
        "payload_bytes",
        "blocked_ns",
        "wait_ns",
        "source_file",
    ),
}

TITLES: dict[str, str] = {
    "kind": "Kind",
    "phase": "Phase",
    "module": "Module",
    "module_class": "Class",
    "op": "Operator",
    "step": "Step",
    "rank": "Rank",
    "host": "Host",
    "id": "Call",
    "mesh_axis": "Axis",
    "source_file": "Source",
    "num_calls": "Calls",
    "own_num_calls": "Own calls",
    "calls_per_step": "Per step",
    "payload_bytes": "Payload",
    "own_payload_bytes": "Own payload",
    "wire_bytes": "Sent",
    "own_wire_bytes": "Own sent",
    "blocked_ns": "Blocked",
    "own_blocked_ns": "Own blocked",
    "duration_ns": "Duration",
    "share": "Share",
    "algbw_bytes_per_s": "algbw",
    "busbw_bytes_per_s": "busbw",
    "wait_ns": "Waited",
    "caused_wait_ns": "Made others wait",
    "num_last": "Came last",
}


def tables(frames: Frames) -> list[dict[str, Any]]:
    """Every table of the page; of the calls, the `MAX_CALLS` that blocked longest."""
    return [_table(CATALOG[name], frames, shown) for name, shown in SHOWN.items()]


def _table(analysis: Analysis, frames: Frames, shown: Sequence[str]) -> dict[str, Any]:
    table = analysis.function(frames)
    num_rows = len(table)
    if analysis.name == "calls":
        table.insert(0, "row", range(num_rows))
        if num_rows > MAX_CALLS:
            table = table.nlargest(MAX_CALLS, "blocked_ns").sort_index()
    columns = [column for column in analysis.columns if column.name in table]
    data = {column.name: _values(table[column.name], column, frames) for column in columns}
    if "row" in table:
        data["row"] = table["row"].tolist()
    return {
        "name": analysis.name,
        "title": analysis.title,
        "question": analysis.question,
        "columns": [_description(column, shown) for column in columns],
        "shown": list(shown),
        "num_rows": len(table),
        "num_left_out": num_rows - len(table),
        "data": data,
    }


def _description(column: Column, shown: Sequence[str]) -> dict[str, Any]:
    return {
        "name": column.name,
        "title": TITLES.get(column.name, column.name.replace("_", " ")),
        "unit": "ns since start" if column.unit == INSTANT else column.unit,
        "type": column.type.__name__,
        "meaning": column.meaning,
    }


def _values(values: pd.Series, column: Column, frames: Frames) -> Any:
    if column.type is str:
        codes, strings = pd.factorize(values)
        return {"strings": strings.tolist(), "codes": codes.tolist()}
    if column.type is bool:
        return values.tolist()
    if column.type is float:
        return [None if value != value else value for value in values.tolist()]
    if column.unit == INSTANT:
        values = (values - frames.start_ns).where(values >= 0, column.missing)
    may_lack = column.name not in ("step",)
    return [None if may_lack and value == column.missing else value for value in values.tolist()]
