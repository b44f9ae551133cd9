"""Grouping of similar findings: a single entry for a line that 80 layers share.

Takes the table of findings and returns a table with the same columns and fewer rows. Findings of
the same rule, advice and line are combined; the row has their total costs and the title of the
costliest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from commtrace.analyze.findings.finding import COLUMNS, MAX_EVIDENCE, in_order

_SAME = ["rule", "advice", "source"]
_SUMS = ["num_calls", "num_untimed", "cost_bytes", "cost_ns", "share"]
_PLACES = ["module", "op", "kind", "mesh_axis"]
_MOST_NAMED = 3


def grouped(table: pd.DataFrame) -> pd.DataFrame:
    """Combine similar findings into a row each, in the order of findings."""
    rows = [_united(rows) for _, rows in table.groupby(_SAME, sort=False)]
    united = pd.DataFrame(rows, columns=[column.name for column in COLUMNS])
    united = united.astype(table.dtypes)
    return in_order(united)


def by_missing_data(unanswered: Mapping[str, str]) -> dict[str, list[str]]:
    """Group the rules that a trace cannot answer by the data they lack."""
    grouped: dict[str, list[str]] = {}
    for name, lack in unanswered.items():
        grouped.setdefault(lack, []).append(name)
    return grouped


def _united(rows: pd.DataFrame) -> dict[Any, Any]:
    first = rows.iloc[0].to_dict()
    if len(rows) == 1:
        return first
    same = {name: first[name] if rows[name].nunique() == 1 else "" for name in _PLACES}
    calls = [each for evidence in rows["evidence"] for each in evidence.split(",")]
    return (
        first
        | same
        | {name: rows[name].sum(min_count=1) for name in _SUMS}
        | {"title": f"{first['title']} {_likewise(rows)}", "evidence": _some_of(calls)}
    )


def _likewise(rows: pd.DataFrame) -> str:
    """Name the other places of a combined finding."""
    others = [module for module in rows["module"].iloc[1:].unique() if module]
    num_others = len(rows) - 1
    if len(others) == num_others and rows["module"].is_unique:
        named = ", ".join(others[:_MOST_NAMED])
        more = f" and {num_others - _MOST_NAMED} more" if num_others > _MOST_NAMED else ""
        return f"The same in {named}{more}."
    return f"The same {num_others} more {'time' if num_others == 1 else 'times'} at this line."


def _some_of(calls: list[str]) -> str:
    return ",".join(list(dict.fromkeys(calls))[:MAX_EVIDENCE])
