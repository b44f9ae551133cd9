"""Tables of the page, in the form that its script reads.

    {"name", "title", "question", "columns": [{"name", "title", "unit", "type", "meaning"}],
     "is_left_out", "shown": [names], "num_rows", "num_left_out", "topic",
     "data": {column: [values]} or, for text, {column: {"strings", "codes"}}}

The table of calls has the call sites of `call_store` as data, and its head as `store`. An instant
becomes ns since the start of the run, because JavaScript numbers are exact only up to 2**53; an
unknown value becomes null.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from commtrace.analyze import CATALOG, Analysis, Frames
from commtrace.report.answers import Answers
from commtrace.report.call_store import CallStore
from commtrace.schema import INSTANT, Column

MAX_ROWS = 5_000

TOPICS = (
    "What",
    "Where from",
    "Between whom",
    "When",
    "Who waits",
    "Devices",
    "Values",
    "Findings",
)

ADDED_TO_CALLS = ("operators", "unknown")
"""Texts of the call sites that are not columns of the analysis: see `call_facts`."""

IF_KNOWN = ("num_untimed", "device_ns")
"""Columns that the page shows only if any of their values is above 0."""


def tables(answers: Answers, store: CallStore) -> list[dict[str, Any]]:
    """Return every table of the page, with at most `MAX_ROWS` rows; the table of calls has all."""
    return [
        {"topic": topic} | _table(answers, analysis, store)
        for topic in TOPICS
        for analysis in CATALOG.values()
        if analysis.topic == topic
    ]


def _table(answers: Answers, analysis: Analysis, store: CallStore) -> dict[str, Any]:
    is_calls, shown = analysis.name == "calls", analysis.shown.split()
    if len(answers.frames.steps) and "share_of_steps" in {each.name for each in analysis.columns}:
        shown = ["share_of_steps" if name == "share" else name for name in shown]
    whole = None if is_calls else answers[analysis.name]
    for name in IF_KNOWN:
        if whole is not None and name in whole and (whole[name] > 0).any():
            after = shown.index("blocked_ns") + 1 if "blocked_ns" in shown else len(shown)
            shown[after:after] = [name] * (name not in shown)
        else:
            shown = [each for each in shown if each != name]
    table = store.sites if whole is None else whole.head(MAX_ROWS)
    num_rows = store.head["num_rows"] if is_calls else len(table)
    num_all = answers.frames.num_calls if whole is None else len(whole)
    return {
        "name": analysis.name,
        "title": analysis.title,
        "question": analysis.question,
        "is_left_out": bool(analysis.needs) and not _has_rows(answers.frames, analysis.needs),
        "columns": [_description(column) for column in analysis.columns],
        "shown": shown,
        "num_rows": num_rows,
        "num_left_out": num_all - num_rows,
        "data": {
            column.name: _values(table[column.name], column, answers.frames)
            for column in analysis.columns
            if column.name in table
        }
        | {name: _texts(table[name]) for name in ADDED_TO_CALLS if is_calls},
        **({"store": store.head, "num_sites": len(store.sites)} if is_calls else {}),
    }


def _has_rows(frames: Frames, table: str) -> bool:
    return any(frames.by_ranks(_any_row, table))


def _any_row(part: Frames, table: str) -> bool:
    return len(getattr(part, table)) > 0


def _description(column: Column) -> dict[str, Any]:
    return {
        "name": column.name,
        "title": column.heading,
        "unit": "ns since start" if column.unit == INSTANT else column.unit,
        "type": column.type.__name__,
        "meaning": column.meaning,
        **({"minus": column.minus} if column.minus else {}),
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
    # -1 of some columns is a value, such as the time outside of steps.
    may_lack = column.name not in ("step",) and not column.minus
    return [None if may_lack and value == column.missing else value for value in values.tolist()]


def _texts(values: pd.Series) -> dict[str, list[Any]]:
    """Return texts, with equal texts stored once."""
    codes, strings = pd.factorize(values.astype(object))
    return {"strings": strings.tolist(), "codes": codes.tolist()}
