"""Tables of the page, in the form that its script reads.

    {"name", "title", "question", "columns": [{"name", "title", "unit", "type", "meaning"}],
     "shown": [names], "num_rows", "num_left_out", "topic",
     "data": {column: [values]} or, for text, {column: {"strings", "codes"}}}

The table of calls has the sites of `call_store` as data, and its head as `store`. An instant
becomes ns since the start of the run, because JavaScript numbers are exact only up to 2**53; an
unknown value becomes null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from commtrace.analyze import CATALOG, Analysis, Frames
from commtrace.report.answers import Answers
from commtrace.report.call_store import CallStore
from commtrace.schema import INSTANT, Column

MAX_ROWS = 5_000

_MEASURED = ("num_calls", "calls_per_step", "payload_bytes", "wire_bytes", "blocked_ns", "share")
_BANDWIDTHS = ("algbw_bytes_per_s", "busbw_bytes_per_s")

SHOWN: dict[str, dict[str, tuple[str, ...]]] = {
    "What": {
        "by_kind": ("kind", *_MEASURED, *_BANDWIDTHS),
        "sizes": (
            *("kind", "group", "mesh_axis", "from_bytes", "num_calls", "payload_bytes"),
            "blocked_ns",
        ),
        "calls": (
            *("rank", "id", "kind", "step", "phase", "module", "op", "mesh_axis"),
            *("payload_bytes", "blocked_ns", "wait_ns", "source_file"),
        ),
    },
    "Where from": {
        "by_module": (
            *("module", "module_class", "num_calls", "own_num_calls", "wire_bytes"),
            *("own_wire_bytes", "blocked_ns", "own_blocked_ns", "share"),
        ),
        "by_op": ("op", "kind", *_MEASURED, "busbw_bytes_per_s"),
        "by_source": (
            *("source_file", "source_function", "num_calls", "payload_bytes", "wire_bytes"),
            *("blocked_ns", "share"),
        ),
        "by_phase": ("phase", *_MEASURED, "busbw_bytes_per_s"),
        "by_region": ("region", *_MEASURED, "busbw_bytes_per_s"),
    },
    "Between whom": {
        "by_group": ("group", "mesh_axis", "group_size", *_MEASURED, "busbw_bytes_per_s"),
        "by_axis": ("mesh_axis", *_MEASURED, *_BANDWIDTHS),
        "matrix": ("source", "target", "wire_bytes", "num_calls"),
    },
    "When": {
        "by_step": (
            *("step", "duration_ns", "num_calls", "payload_bytes", "wire_bytes", "blocked_ns"),
            "share",
        ),
        "overlap": (
            *("step", "rank", "duration_ns", "communication_ns", "exposed_ns", "overlapped_ns"),
            *("exposed_share", "overlapped_share", "unknown_ns"),
        ),
    },
    "Who waits": {
        "by_rank": (
            *("rank", "host", "num_calls", "wire_bytes", "blocked_ns", "share", "wait_ns"),
            *("caused_wait_ns", "num_last"),
        ),
        "stragglers": (
            *("rank", "kind", "phase", "module", "source_file", "num_late", "delay_ns"),
            *("max_delay_ns", "worst_step", "worst_call", "work_ns", "others_work_ns"),
        ),
        "wait_states": (
            *("state", "kind", "mesh_axis", "num_waits", "wait_ns", "transfer_ns"),
            *("max_wait_ns", "share", "worst_rank", "worst_wait_ns"),
        ),
        "rank_waits": (
            *("rank", "state", "num_calls", "num_waits", "wait_ns", "transfer_ns", "unknown_ns"),
        ),
        "skew": (
            *("group", "mesh_axis", "kind", "num_collectives", "mean_skew_ns", "max_skew_ns"),
            *("wait_ns", "last_rank", "last_share"),
        ),
        "balance": (
            *("step", "duration_ns", "mean_useful_ns", "busiest_rank", "load_balance"),
            *("communication_efficiency", "parallel_efficiency"),
        ),
    },
}
"""Tables of the page by topic, each with the columns that it shows."""

ADDED_TO_CALLS = ("operators", "unknown")
"""Texts of the sites that are not columns of the analysis: see `call_facts`."""

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
    "share_of_steps": "Of steps",
    "algbw_bytes_per_s": "algbw",
    "busbw_bytes_per_s": "busbw",
    "wait_ns": "Waited",
    "caused_wait_ns": "Made others wait",
    "num_last": "Came last",
    "group": "Group",
    "group_size": "Ranks",
    "region": "Region",
    "source_function": "Function",
    "from_bytes": "From size",
    "source": "Source",
    "target": "Target",
    "communication_ns": "Communicating",
    "exposed_ns": "Exposed",
    "overlapped_ns": "Overlapped",
    "exposed_share": "Exposed share",
    "overlapped_share": "Hidden share",
    "state": "Wait state",
    "num_waits": "Waits",
    "unknown_ns": "Not known",
    "transfer_ns": "Transferred",
    "max_wait_ns": "Longest",
    "worst_rank": "Worst rank",
    "worst_wait_ns": "Waited for it",
    "num_collectives": "Collectives",
    "num_late": "Times late",
    "delay_ns": "Delayed all",
    "max_delay_ns": "Longest",
    "worst_step": "In step",
    "worst_call": "That call",
    "work_ns": "Its work before",
    "others_work_ns": "Others' work",
    "mean_skew_ns": "Mean skew",
    "max_skew_ns": "Longest skew",
    "last_rank": "Last rank",
    "last_share": "How often",
    "mean_useful_ns": "Mean useful",
    "busiest_rank": "Busiest rank",
    "load_balance": "Load balance",
    "communication_efficiency": "Comm. eff.",
    "parallel_efficiency": "Parallel eff.",
}


def tables(answers: Answers, store: CallStore) -> list[dict[str, Any]]:
    """Return every table of the page, with at most `MAX_ROWS` rows; the table of calls has all."""
    return [
        {"topic": topic} | _table(answers, CATALOG[name], shown, store)
        for topic, of_topic in SHOWN.items()
        for name, shown in of_topic.items()
    ]


def _table(
    answers: Answers, analysis: Analysis, shown: Sequence[str], store: CallStore
) -> dict[str, Any]:
    is_calls = analysis.name == "calls"
    if len(answers.frames.steps) and "share_of_steps" in {each.name for each in analysis.columns}:
        shown = ["share_of_steps" if name == "share" else name for name in shown]
    table = store.sites if is_calls else answers[analysis.name].head(MAX_ROWS)
    num_rows = store.head["num_rows"] if is_calls else len(table)
    return {
        "name": analysis.name,
        "title": analysis.title,
        "question": analysis.question,
        "columns": [_description(column) for column in analysis.columns],
        "shown": list(shown),
        "num_rows": num_rows,
        "num_left_out": 0 if is_calls else len(answers[analysis.name]) - num_rows,
        "data": {
            column.name: _values(table[column.name], column, answers.frames)
            for column in analysis.columns
            if column.name in table
        }
        | {name: _texts(table[name]) for name in ADDED_TO_CALLS if is_calls},
        **({"store": store.head, "num_sites": len(store.sites)} if is_calls else {}),
    }


def _description(column: Column) -> dict[str, Any]:
    return {
        "name": column.name,
        "title": TITLES.get(column.name, column.name.replace("_", " ")),
        "unit": "ns since start" if column.unit == INSTANT else column.unit,
        "type": column.type.__name__,
        "meaning": column.meaning,
    }


def _values(values: pd.Series, column: Column, frames: Frames) -> Any:
    if column.type is str:
        return _texts(values)
    if column.type is bool:
        return values.tolist()
    if column.type is float:
        return [None if value != value else value for value in values.tolist()]
    if column.unit == INSTANT:
        values = (values - frames.start_ns).where(values >= 0, column.missing)
    may_lack = column.name not in ("step",)
    return [None if may_lack and value == column.missing else value for value in values.tolist()]


def _texts(values: pd.Series) -> dict[str, list[Any]]:
    """Return texts with each distinct one stored once."""
    codes, strings = pd.factorize(values.astype(object))
    return {"strings": strings.tolist(), "codes": codes.tolist()}
