"""Grouping of similar findings: a single entry for a line that 80 layers share.

Findings of the same rule, advice and line are one row, with the sums of their calls and bytes and
the title of the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from commtrace.analyze.findings.finding import MAX_EVIDENCE, sum_of_known

_SAME = ("rule", "advice", "source")
_SUMS = ("num_calls", "cost_bytes")
_PLACES = ("module", "op", "kind", "mesh_axis")
_MOST_NAMED = 3


def likeness(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what similar findings have in common."""
    return tuple([row[name] for name in _SAME])


def by_missing_data(unanswered: Mapping[str, str]) -> dict[str, list[str]]:
    """Group the rules that a trace cannot answer by the data they lack."""
    grouped: dict[str, list[str]] = {}
    for name, lack in unanswered.items():
        grouped.setdefault(lack, []).append(name)
    return grouped


def united(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the row of similar findings, without their saving of time."""
    first = dict(rows[0])
    same = {name: first[name] if len({row[name] for row in rows}) == 1 else "" for name in _PLACES}
    calls = [each for row in rows for each in row["evidence"].split(",")]
    return (
        first
        | same
        | {name: sum_of_known(row[name] for row in rows) for name in _SUMS}
        | {"title": f"{first['title']} {_likewise(rows)}", "evidence": _some_of(calls)}
    )


def _likewise(rows: Sequence[Mapping[str, Any]]) -> str:
    """Name the other places of a combined finding."""
    modules = [row["module"] for row in rows]
    others = [module for module in dict.fromkeys(modules[1:]) if module]
    num_others = len(rows) - 1
    if len(others) == num_others and len(set(modules)) == len(modules):
        named = ", ".join(others[:_MOST_NAMED])
        more = f" and {num_others - _MOST_NAMED} more" if num_others > _MOST_NAMED else ""
        return f"The same in {named}{more}."
    return f"The same {num_others} more {'time' if num_others == 1 else 'times'} at this line."


def _some_of(calls: list[str]) -> str:
    return ",".join(list(dict.fromkeys(calls))[:MAX_EVIDENCE])
