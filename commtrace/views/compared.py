"""`commtrace.compare`: a comparison of the values of two runs, which displays itself."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commtrace.analyze import Frames
from commtrace.analyze.comparisons.compared import compare as compare_frames
from commtrace.analyze.values import (
    ValueComparison,
    agreement,
    evidence,
    layout_of,
    limits,
    name_of,
    title,
)
from commtrace.analyze.values.divergence import divergence
from commtrace.escaping import visible
from commtrace.tracefile import Trace
from commtrace.views.html import html
from commtrace.views.run import load
from commtrace.views.views import Views

if TYPE_CHECKING:
    import plotly.graph_objects as go

MOST_SHOWN = 8
_METHODS = "divergence(), along_the_program(), report(path), pairs"

_TEMPLATE = """
<div><b>{{ verdict }}</b></div>
{% for line in lines %}
<div{% if loop.index0 >= num_evidence %} class="note"{% endif %}>{{ line }}</div>
{% endfor %}
{% if rows %}
<table><tr><th class="number">step</th><th>phase</th><th>tensor</th><th class="number">distance</th>
<th class="number">tolerance</th><th>first run</th><th>second run</th></tr>
{% for row in rows %}
<tr><td class="number">{{ row[0] }}</td><td>{{ row[1] }}</td><td>{{ row[2] }}</td>
<td class="number">{{ row[3] }}</td><td class="number">{{ row[4] }}</td><td>{{ row[5] }}</td>
<td>{{ row[6] }}</td></tr>
{% endfor %}
</table>
{% if num_more %}<div class="note">{{ num_more }} more tensors differ</div>{% endif %}
{% endif %}
<div class="note">Look at it with <code>.{{ methods }}</code></div>
"""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Compared(ValueComparison):
    """A comparison that displays itself, with its runs.

    Attributes:
        left: The run that is taken for right.
        right: The other run.
        label: Name of the other run.
    """

    left: Frames
    right: Frames
    label: str

    def divergence(self) -> go.Figure:
        """Draw the divergence by module and step."""
        from commtrace.figures.divergence import divergence_map
        from commtrace.views.figure import Drawn

        return Drawn(divergence_map(self, divergence(self, self.left)))

    def along_the_program(self) -> go.Figure:
        """Draw the distances along the program, in multiples of the tolerance."""
        from commtrace.figures.divergence import divergence_line
        from commtrace.views.figure import Drawn

        return Drawn(divergence_line(self))

    def report(self, path: Path | str) -> Path:
        """Write the page of the comparison, as `commtrace compare -o` does; return its path.

        Raises:
            OutputError: The path cannot be written.
        """
        from commtrace.report import write_comparison

        return write_comparison(self, self.left, self.right, path)

    def _lines(self) -> list[str]:
        """Return the verdict, then its evidence."""
        if self.fault is None:
            return [agreement(self)]
        return [title(self.fault, self.label), *evidence(self.fault)]

    def _repr_html_(self) -> str:
        verdict, *lines = self._lines()
        wrong = self.pairs[self.pairs["is_wrong"]]
        rows = [
            (
                row["step"], row["phase"], name_of(row), f"{row['distance']:.2g}",
                f"{row['tolerance']:.2g}", layout_of({"layout": row["layout_left"]}),
                layout_of({"layout": row["layout_right"]}),
            )
            for row in wrong.head(MOST_SHOWN).to_dict("records")
        ]  # fmt: skip
        return html(
            _TEMPLATE,
            verdict=verdict,
            lines=[*lines, *limits(self)],
            num_evidence=len(lines),
            rows=rows,
            num_more=max(len(wrong) - MOST_SHOWN, 0),
            methods=_METHODS,
        )

    def __repr__(self) -> str:
        verdict, *lines = self._lines()
        return "\n".join(map(visible, [verdict, *(f"  {line}" for line in lines), *limits(self)]))


Source = Path | str | Trace | Frames | Views


def compare(left: Source, right: Source, reference: Source | None = None) -> Compared:
    """Compare the values of two runs of a program, recorded with `values`.

    Args:
        left: The run that is taken for right, such as a run on a single device: its path,
            the loaded run, or its recording.
        right: The other run, in any layout.
        reference: The left run in float64, which measures what rounding explains.

    Returns:
        The comparison: `agrees`, `fault`, `pairs`, and the methods to view them.

    Raises:
        UsageError: A run has no values, or nothing in them can be paired.
        TraceError: A path holds no trace.
    """
    ours, theirs = _frames(left), _frames(right)
    found = compare_frames(ours, theirs, None if reference is None else _frames(reference))
    values: dict[str, Any] = {
        field.name: getattr(found, field.name) for field in fields(ValueComparison)
    }
    label = theirs.path.name if theirs.path else "the second run"
    return Compared(**values, left=ours, right=theirs, label=label)


def _frames(source: Source) -> Frames:
    return source.frames() if isinstance(source, Views) else load(source)
