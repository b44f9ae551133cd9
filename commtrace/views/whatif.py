"""`run.whatif(change)`: a run replayed with changes, which displays itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from commtrace.analyze.replay.effects import COLUMNS
from commtrace.analyze.replay.lines import (
    HEADINGS,
    critical_line,
    effect_lines,
    extent_line,
    step_line,
    verdict_line,
)
from commtrace.analyze.replay.prediction import ChangedSteps
from commtrace.analyze.run.frame import Frames
from commtrace.escaping import visible
from commtrace.views.html import html
from commtrace.views.table import Table

_METHODS = "effects(), run, saved_ns, step_ns, replayed_step_ns"

_TEMPLATE = """
<div><b>{{ step }}</b> {{ verdict }}</div>
{% for change in changes %}
<div class="note"><code>{{ change }}</code></div>
{% endfor %}
{% if rows %}
<table><tr><th></th>{% for heading in headings %}<th class="number">{{ heading }}</th>
{%- endfor %}</tr>
{% for row in rows %}
<tr>{% for text in row %}<td{% if not loop.first %} class="number"{% endif %}>{{ text }}</td>
{%- endfor %}</tr>
{% endfor %}
</table>
{% endif %}
{% for note in notes %}
<div class="note">{{ note }}</div>
{% endfor %}
<div class="note">Look at it with <code>.{{ methods }}</code></div>
"""


R = TypeVar("R")


class WhatIf(Generic[R]):
    """A run replayed with changes."""

    __slots__ = ("_answer", "_run", "_view")

    def __init__(self, answer: ChangedSteps, view: Callable[[Frames], R]) -> None:
        self._answer = answer
        self._view = view
        self._run: R | None = None

    @property
    def changes(self) -> tuple[str, ...]:
        """The changes."""
        return tuple(dict.fromkeys([change.text for change in self._answer.changes]))

    @property
    def step_ns(self) -> float:
        """Recorded time of a step in ns, the median of steady steps; without steps, of the run."""
        return self._answer.before.step_ns

    @property
    def error_ns(self) -> float:
        """Standard error of that time, by the steps' variation; nan with fewer than three."""
        return self._answer.before.error_ns

    @property
    def replayed_step_ns(self) -> tuple[float, float]:
        """Time of a step with the changes, in ns: at least, and at most."""
        return self._answer.after

    @property
    def saved_ns(self) -> tuple[float, float]:
        """Time of a step that they save, in ns: at least, and at most; below 0 if they cost."""
        return self._answer.saved_ns

    @property
    def run(self) -> R:
        """The replayed run, with the longer of the step times."""
        if self._run is None:
            self._run = self._view(self._answer.run)
        return self._run

    def effects(self) -> Table:
        """Return time per step, before and after, by rank, kind and wait state."""
        return Table.of(self._answer.effects(), COLUMNS)

    def _notes(self) -> list[str]:
        return [*filter(None, (critical_line(self._answer), extent_line(self._answer)))]

    def _repr_html_(self) -> str:
        return html(
            _TEMPLATE,
            step=step_line(self._answer),
            verdict=verdict_line(self._answer),
            changes=self.changes,
            headings=HEADINGS,
            rows=effect_lines(self._answer),
            notes=self._notes(),
            methods=_METHODS,
        )

    def __repr__(self) -> str:
        lines = [("", *HEADINGS), *effect_lines(self._answer)]
        widths = [max(map(len, texts)) for texts in zip(*lines, strict=True)]
        table = [
            "  ".join(
                text.rjust(width) if place else text.ljust(width)
                for place, (text, width) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        ]
        head = f"{step_line(self._answer)}  {verdict_line(self._answer)}"
        every = [*self.changes, head, *(table if len(lines) > 1 else []), *self._notes()]
        return "\n".join(map(visible, every))
