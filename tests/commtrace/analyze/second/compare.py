"""Comparison of a table with its second computation."""

from __future__ import annotations

import math
from typing import Any

from commtrace.analyze import Analysis, Frames
from tests.commtrace.analyze.second import SECOND, Run


def differences(analysis: Analysis, run: Run, frames: Frames) -> list[str]:
    """Describe each row or value in which the two differ, at most ten."""
    second = SECOND[analysis.name]
    columns = [c.name for c in analysis.columns if c.name not in second.ignored]
    table = _by_key(analysis.function(frames).to_dict("records"), second.keys)
    loops = _by_key(second.rows(run), second.keys)
    lines = [f"only in the table: {key}" for key in table.keys() - loops.keys()]
    lines += [f"only in the loops: {key}" for key in loops.keys() - table.keys()]
    for key in table.keys() & loops.keys():
        for name in columns:
            found, expected = table[key][name], loops[key][name]
            if found != expected and not _is_close(found, expected):
                lines.append(f"{key} {name}: {found!r} in the table, {expected!r} in the loops")
    return lines[:10]


def _is_close(found: Any, expected: Any) -> bool:
    """Return whether two numbers are equal up to rounding; unknown equals unknown."""
    if isinstance(found, str) or isinstance(expected, str):
        return False
    both_unknown = math.isnan(found) and math.isnan(expected)
    return both_unknown or math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-12)


def _comparable(value: Any) -> Any:
    """Return a value that equals itself, and other numbers up to rounding."""
    if not isinstance(value, float):
        return value
    return "unknown" if math.isnan(value) else round(value, 6)


def _by_key(rows: list[dict[str, Any]], keys: Any) -> dict[Any, dict[str, Any]]:
    """Index the rows by their key columns and a number that distinguishes equal keys."""
    found: dict[Any, dict[str, Any]] = {}
    for row in rows:
        key = tuple([_comparable(row[name]) for name in keys])
        number = 0
        while (*key, number) in found:
            number += 1
        found[(*key, number)] = row
    return found
