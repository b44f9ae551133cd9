"""Validation of a trace against the schema, once after reading; analyses then rely on it.

Columns have the length of their table, integers are within the bounds of their column, and strings
match its form. Ids are unique, no end precedes its beginning, and every call's group exists. All
violations are reported in a single InvalidTraceError. The constraints come from `commtrace.schema`;
each is a numpy pass over a column.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

import numpy as np

from commtrace.errors import InvalidTraceError
from commtrace.schema import FORMS, MAX_RANKS, ORDERED, REFERENCES, TABLES, UNIQUE, Column
from commtrace.tracefile.arrays import recoded, used_codes, view_of
from commtrace.tracefile.facts import require_run_facts
from commtrace.tracefile.reading import check_depth, distinct, reading
from commtrace.tracefile.trace import Columns, StringColumn, StringTable, Trace

_MAX_LISTED = 5


def validated(trace: Trace, summary: str = "") -> Trace:
    """Return `trace` with printable strings, if it obeys the schema.

    Raises:
        InvalidTraceError: names the columns and rows with impossible values.
    """
    summary = summary or f"cannot read the trace {trace.path or 'in memory'}"
    with reading(summary):
        check_depth(trace.run)
        require_run_facts(trace.run, summary)
        _require_none(list(_violations(trace)), summary)
        return _printable(trace)


def check_columns(table: str, columns: Sequence[Column], values: Columns, summary: str) -> None:
    """Check some columns of a table, whose other columns are not read.

    Raises:
        InvalidTraceError: names the rows with impossible values.
    """
    found = [
        problem
        for column in columns
        for problem in _violations_of_column(
            f"tables.{table}.columns.{column.name}", column, values
        )
    ]
    _require_none(found, summary)


Violation = tuple[str, str]
"""The place, and the problem as a text that contains the place."""


def _require_none(found: Sequence[Violation], summary: str) -> None:
    if not found:
        return
    more = f"; and {len(found) - _MAX_LISTED} more" if len(found) > _MAX_LISTED else ""
    raise InvalidTraceError(
        summary,
        place=found[0][0],
        found="; ".join(text for _, text in found[:_MAX_LISTED]) + more,
        why="a recording never has such values: the file was modified or is damaged",
        attempt="copy it again, or record the run again",
    )


def _violations(trace: Trace) -> Iterator[Violation]:
    sound: dict[str, bool] = {}
    for name, columns in TABLES.items():
        found = list(_violations_of_table(name, columns, trace.tables[name]))
        sound[name] = not found
        yield from found
    yield from _disorder(trace, sound)
    yield from _unknown_references(trace, sound)


def _violations_of_table(
    name: str, columns: Sequence[Column], table: Columns
) -> Iterator[Violation]:
    lengths = {len(table[column.name]) for column in columns}
    if len(lengths) > 1:
        place = f"tables.{name}"
        yield place, f"{place}: columns of {', '.join(map(str, sorted(lengths)))} rows"
        return
    wrong = False
    for column in columns:
        for problem in _violations_of_column(f"tables.{name}.columns.{column.name}", column, table):
            wrong = True
            yield problem
    if not wrong:
        yield from _doubles(name, table)
        if name == "groups":
            yield from _sizes(table)


def _violations_of_column(place: str, column: Column, table: Columns) -> Iterator[Violation]:
    values = table[column.name]
    if column.type is str:
        yield from _misshapen(place, column, values)
        return
    if column.type is float:
        return
    numbers = np.asarray(values)
    least = 0 if column.type is bool else column.least
    if not len(numbers) or (numbers.min() >= least and numbers.max() <= column.most):
        return
    bad = np.flatnonzero((numbers < least) | (numbers > column.most))
    unit = f" {column.unit}" if column.unit else ""
    rows = f" and {len(bad) - 1:,} more rows" if len(bad) > 1 else ""
    bounds = f"{least} to {column.most}{unit}"
    yield place, f"{place}: {numbers[bad[0]]} in row {bad[0]}{rows}, which is not in {bounds}"


def _misshapen(place: str, column: Column, values: Sequence[str]) -> Iterator[Violation]:
    if not column.form:
        return
    bad = [text for text in _used(values) if not _has_form(column.form, text)]
    if bad:
        more = f" and {len(bad) - 1:,} more" if len(bad) > 1 else ""
        shown = repr(bad[0][:60])
        yield place, f"{place}: {shown}{more}, which is not of the form {column.form}"


def _used(values: Sequence[str]) -> list[str]:
    """Return the distinct strings of a column."""
    if isinstance(values, StringColumn):
        return [values.strings[code] for code in used_codes(values)]
    return sorted(set(values))


@lru_cache(maxsize=4096)
def _has_form(form: str, text: str) -> bool:
    if re.fullmatch(FORMS[form], text, re.ASCII | re.DOTALL) is None:
        return False
    check = _FURTHER.get(form)
    return check is None or check(text)


def _are_members(text: str) -> bool:
    """Return whether the text lists distinct ranks below the maximum."""
    ranks = [int(rank) for rank in text.split(",")] if text else []
    return len(set(ranks)) == len(ranks) and max(ranks, default=0) < MAX_RANKS


def _are_candidates(text: str) -> bool:
    """Return whether the text is a JSON list of pairs of a layout and its cost."""
    try:
        candidates = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return False
    return all(
        isinstance(each, list)
        and len(each) == 2
        and isinstance(each[0], str)
        and type(each[1]) in (int, float)
        # Neither nan nor infinity, which Python's JSON reader accepts.
        and abs(each[1]) < 1e300
        for each in candidates
    )


_FURTHER = {"ranks": _are_members, "candidates": _are_candidates}


def _doubles(name: str, table: Columns) -> Iterator[Violation]:
    """Report rows that share the values of columns that must be unique."""
    keys = [_codes(table[column]) for column in UNIQUE[name]]
    # Rows in order have no duplicates, which usually spares the sort.
    if not len(keys[0]) or _is_increasing(keys):
        return
    order = np.lexsort(keys[::-1])
    for key in keys:
        # Unknown values (-1) are no duplicates of each other.
        order = order[key[order] >= 0]
    if not len(order):
        return
    same = np.ones(len(order) - 1, dtype=bool)
    for key in keys:
        same &= key[order[1:]] == key[order[:-1]]
    if same.any():
        row = int(order[1:][same][0])
        values = ", ".join(f"{column} {table[column][row]}" for column in UNIQUE[name])
        place = f"tables.{name}"
        yield place, f"{place}: {int(same.sum()):,} duplicate rows, such as {values}"


def _is_increasing(keys: Sequence[np.ndarray]) -> bool:
    """Return whether each row follows the previous in lexicographic order of the keys."""
    after = np.zeros(len(keys[0]) - 1, dtype=bool)
    same = np.ones(len(keys[0]) - 1, dtype=bool)
    for key in keys:
        after |= same & (key[1:] > key[:-1])
        same &= key[1:] == key[:-1]
    return bool(after.all())


def _codes(values: Sequence[Any]) -> np.ndarray:
    """Return integers as they are, and for strings codes that are equal for equal strings."""
    if isinstance(values, StringColumn):
        return view_of(recoded(values, StringTable()))
    return np.asarray(values)


def _sizes(groups: Columns) -> Iterator[Violation]:
    for row, (ranks, size) in enumerate(zip(groups["ranks"], groups["size"], strict=True)):
        num = ranks.count(",") + 1
        if ranks and size != num:
            place = "tables.groups.columns.size"
            yield place, f"{place}: {size} in row {row}, which has {num} ranks"
            return


def _disorder(trace: Trace, sound: dict[str, bool]) -> Iterator[Violation]:
    for name, before, after in ORDERED:
        if not sound[name]:
            continue
        table = trace.tables[name]
        early, late = np.asarray(table[before]), np.asarray(table[after])
        known = (early >= 0) & (late >= 0)
        bad = known & ((early >= late) if after == "id" else (early > late))
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            place = f"tables.{name}.columns.{after}"
            yield (
                place,
                f"{place}: {late[row]} in row {row}, where {before} is {early[row]}",
            )


def _unknown_references(trace: Trace, sound: dict[str, bool]) -> Iterator[Violation]:
    for name, column, other, key in REFERENCES:
        if not (sound[name] and sound[other]):
            continue
        names = set(_used(trace.tables[name][column]))
        unknown = sorted(names - {""} - set(trace.tables[other][key]))
        if unknown:
            place = f"tables.{name}.columns.{column}"
            yield place, f"{place}: {unknown[0][:60]!r}, which is not in table {other}"


def _printable(trace: Trace) -> Trace:
    """Return the trace with lone surrogates, which no file can hold, escaped in its strings."""
    lists: dict[int, list[str]] = {
        id(values.strings): cast("list[str]", values.strings)
        for table in trace.tables.values()
        for values in table.values()
        if isinstance(values, StringColumn)
    }
    for strings in lists.values():
        # One attempt for all strings, since bad ones are rare.
        if not _can_be_encoded("\n".join(strings)):
            # In place, since all columns share the list.
            strings[:] = distinct([_encodable(each) for each in strings])
    return replace(trace, run=_encodable(trace.run))


def _can_be_encoded(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_encodable(name): _encodable(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encodable(each) for each in value]
    return value
