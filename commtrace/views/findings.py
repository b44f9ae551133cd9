"""Table of findings that displays itself as a list of sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from commtrace.analyze import CATALOG, Frames
from commtrace.analyze.findings import by_missing_data, grouped, unanswered
from commtrace.escaping import visible
from commtrace.units import text_of_bytes, text_of_duration
from commtrace.views.html import html
from commtrace.views.table import Table

_UNANSWERED = "commtrace_unanswered"

_TEMPLATE = """
<div><b>{{ heading }}</b></div>
{% for finding in findings %}
<div class="finding">
{% if finding.cost %}<span class="cost">{{ finding.cost }}</span>{% endif %}
<div>{{ finding.title }}</div>
<div>{{ finding.advice }}</div>
<div class="note">{{ finding.rule }}{% if finding.source %} at {{ finding.source }}{% endif %}
{% if finding.evidence %}; first call <code>{{ finding.evidence.partition(",")[0] }}</code>
{% endif %}</div>
</div>
{% endfor %}
{% for line in unanswered %}
<div class="note">{{ line }}</div>
{% endfor %}
"""


class Findings(Table):
    """One row per finding; a selection of rows or columns is an ordinary table."""

    @classmethod
    def of_run(cls, table: pd.DataFrame, frames: Frames) -> Findings:
        """Return the findings of a run, with the rules that it cannot answer."""
        found = cls.of(table, CATALOG["findings"].columns, frames.start_ns)
        found.attrs[_UNANSWERED] = unanswered(frames)
        return found

    def _repr_html_(self) -> str:
        return html(
            _TEMPLATE,
            heading=self._heading(),
            findings=[row | {"cost": _cost(row)} for row in self._rows()],
            unanswered=self._unevaluated_rules(),
        )

    def __repr__(self) -> str:
        lines = [self._heading()]
        for row in self._rows():
            lines += [f"{row['rule']}  {_cost(row)}".rstrip(), f"  {row['title']}"]
            lines += [f"  {row['advice']}", f"  at {row['source']}"][: 1 + bool(row["source"])]
        return "\n".join(map(visible, lines + self._unevaluated_rules()))

    def _unevaluated_rules(self) -> list[str]:
        """Return one sentence per kind of missing data, with the rules that need it."""
        lacks = by_missing_data(self.attrs[_UNANSWERED])
        return [f"Not evaluated: {', '.join(names)}. {lack}" for lack, names in lacks.items()]

    def _rows(self) -> list[dict[Any, Any]]:
        """Return the findings, similar ones combined."""
        return grouped(pd.DataFrame(self)).to_dict("records")

    def _heading(self) -> str:
        num = len(self._rows())
        return f"{num} finding{'' if num == 1 else 's'}"


def _cost(row: Mapping[Any, Any]) -> str:
    """Format the possible saving per rank."""
    costs = [text_of_duration(row["cost_ns"])] if row["cost_ns"] > 0 else []
    costs += [text_of_bytes(row["cost_bytes"])] if row["cost_bytes"] > 0 else []
    return f"could save {' and '.join(costs)}" if costs else ""
