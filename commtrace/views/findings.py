"""Table of findings that displays itself as a list of sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from commtrace.analyze import CATALOG, Frames
from commtrace.analyze.findings import by_missing_data, evaluated_note, grouped, unanswered
from commtrace.analyze.findings.table_rows import savings
from commtrace.escaping import visible
from commtrace.units import counted
from commtrace.views.html import html
from commtrace.views.table import Table

_UNANSWERED, _NUM_RANKS = "commtrace_unanswered", "commtrace_num_ranks"
_EVALUATED, _GROUPED = "commtrace_evaluated", "commtrace_grouped"

_TEMPLATE = """
<div><b>{{ heading }}</b></div>
{% for finding in findings %}
<div class="finding">
{% if finding.cost %}<span class="cost">{{ finding.cost }}</span>{% endif %}
<div>{{ finding.title }}</div>
<div>{{ finding.advice }}</div>
{% if finding.change %}
<div class="note">replayed: <code>{{ finding.change }}</code></div>
{% endif %}
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
        found.attrs[_NUM_RANKS] = max(frames.num_ranks, 1)
        found.attrs[_EVALUATED] = evaluated_note(frames)
        found.attrs[_GROUPED] = grouped(frames).to_dict("records")
        return found

    def _repr_html_(self) -> str:
        return html(
            _TEMPLATE,
            heading=self._heading(),
            findings=[row | {"cost": self._cost(row)} for row in self._rows()],
            unanswered=self._unevaluated_rules(),
        )

    def __repr__(self) -> str:
        lines = [self._heading()]
        for row in self._rows():
            lines += [f"{row['rule']}  {self._cost(row)}".rstrip(), f"  {row['title']}"]
            lines.append(f"  {row['advice']}")
            lines += [f"  replayed: {row['change']}"] if row["change"] else []
            lines += [f"  at {row['source']}"] if row["source"] else []
        return "\n".join(map(visible, lines + self._unevaluated_rules()))

    def _unevaluated_rules(self) -> list[str]:
        """Return what rules lack; without findings, also the number of those that lack nothing."""
        lacks = by_missing_data(self.attrs[_UNANSWERED])
        lines = [f"Not evaluated: {', '.join(names)}. {lack}" for lack, names in lacks.items()]
        note = "" if len(self) else self.attrs[_EVALUATED]
        return [*([f"{note}:"] if note else []), *lines]

    def _rows(self) -> list[dict[Any, Any]]:
        """Return the findings, with similar findings combined."""
        return self.attrs[_GROUPED]

    def _heading(self) -> str:
        return counted(len(self._rows()), "finding")

    def _cost(self, row: Mapping[Any, Any]) -> str:
        """Format the possible saving per rank."""
        saved = savings(row, self.attrs[_NUM_RANKS])
        return f"could save {saved}" if saved else ""
