"""Consistency of a run's ranks, as `commtrace check` states it, for the terminal and notebooks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from commtrace.analyze import CATALOG, Frames, notices_of
from commtrace.analyze.consistency import NOT_COMPARED, compared, result_of
from commtrace.analyze.consistency.problem import blame_text
from commtrace.analyze.divergence import first_verdict, lines_of, of_fault
from commtrace.analyze.gradients import summary
from commtrace.analyze.notices import EVERYTHING
from commtrace.views.html import html
from commtrace.views.lines import StyledLine, StyledText, line, markup, text_of
from commtrace.views.table import Table

_MOODS = {"good": "good", "bad": "bad", "": "serious"}
_STATES = {"right": "advice"}

_TEMPLATE = """
{{ result }}
{% for fault in faults %}
<div class="finding">{{ fault.heading }}
<div>{{ fault.explanation }}</div>
{% if fault.source %}<div class="note">at <code>{{ fault.source }}</code></div>{% endif %}
{% if fault.parting %}
<dl>{% for name, text in fault.parting %}<dt>{{ name }}</dt><dd>{{ text }}</dd>{% endfor %}</dl>
{% endif %}
</div>
{% endfor %}
{{ gradients }}
"""


@dataclass(frozen=True, slots=True)
class CheckedProblem:
    """A fault, or a part of the run that could not be checked.

    Attributes:
        heading: Its name and the ranks to blame, if they are known.
        explanation: What the ranks did.
        source: Source line of the call.
        parting: Where the ranks parted before: the last call that they made alike, the line that
            each went on to, and what happened on one of them, each with a title.
    """

    heading: StyledLine
    explanation: str
    source: str
    parting: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check, which displays itself.

    Attributes:
        problems: Table `consistency`: faults, and what could not be checked.
        gradients: How each gradient was reduced, if that was asked for.
        result: The verdict, the number of faults, the compared calls, and what the run lacks.
        parted: Table `divergences`, of a run with a fault.
        audit: How gradients were reduced, in lines.
    """

    problems: Table
    gradients: Table | None
    result: tuple[StyledLine, ...]
    parted: pd.DataFrame | None
    audit: tuple[StyledLine, ...]

    @classmethod
    def of(cls, frames: Frames, *, gradients: bool = False) -> Checked:
        """Check a run, and how its gradients were reduced if asked to."""
        analysis = CATALOG["consistency"]
        problems = analysis.function(frames)
        has_fault = bool(problems["is_fault"].any())
        parted = CATALOG["divergences"].function(frames) if has_fault else None
        audit = CATALOG["gradients"]
        reduced = audit.function(frames) if gradients else None
        return cls(
            Table.of(problems, analysis.columns, frames.start_ns),
            None if reduced is None else Table.of(reduced, audit.columns, frames.start_ns),
            tuple(_result(frames, problems, parted)),
            parted,
            () if reduced is None else tuple(_audit(frames, reduced)),
        )

    @property
    def has_fault(self) -> bool:
        """True if the ranks are known to disagree."""
        return bool(self.problems["is_fault"].any())

    def found(self) -> Iterator[CheckedProblem]:
        """Yield the problems; calls that were not compared are part of `result`."""
        rows: list[dict[Any, Any]] = pd.DataFrame(self.problems).to_dict("records")
        for row in rows:
            if row["problem"] == NOT_COMPARED:
                continue
            blamed = blame_text(row)
            about = [] if self.parted is None else of_fault(self.parted, row)
            yield CheckedProblem(
                (
                    StyledText(str(row["problem"]), "bad" if row["is_fault"] else "serious"),
                    StyledText(f"  {blamed}" if blamed else ""),
                ),
                str(row["explanation"]),
                str(row["source"]),
                tuple(lines_of(about[0])) if about else (),
            )

    def _repr_html_(self) -> str:
        faults = [
            {
                "heading": markup([each.heading]),
                "explanation": each.explanation,
                "source": each.source,
                "parting": each.parting,
            }
            for each in self.found()
        ]
        return html(
            _TEMPLATE, result=markup(self.result), faults=faults, gradients=markup(self.audit)
        )

    def __repr__(self) -> str:
        lines = [*self.result]
        for each in self.found():
            lines += [line(""), each.heading, line(f"  {each.explanation}")]
            lines += [line(f"  at {each.source}")] if each.source else []
            lines += [line(f"  {name}  {text}") for name, text in each.parting]
        for number, each in enumerate(self.audit):
            lines += [(StyledText("  "), *each)] if number else [line(""), each]
        return "\n".join(map(text_of, lines))


def _result(
    frames: Frames, problems: pd.DataFrame, parted: pd.DataFrame | None
) -> Iterator[StyledLine]:
    comparison = compared(frames)
    if verdict := first_verdict(problems, parted):
        yield line(verdict, "bad")
    result, mood = result_of(frames, comparison, int(problems["is_fault"].sum()))
    yield line(result, _MOODS[mood])
    for text in comparison.lines():
        yield line(text, "faint")
    # Says what the trace lacks, so that an empty result is not mistaken for a clean run.
    for notice in notices_of(frames):
        if not notice.is_minor and EVERYTHING in notice.limits:
            yield line(f"note: {notice.text}", "warning")


def _audit(frames: Frames, reduced: pd.DataFrame) -> Iterator[StyledLine]:
    lines = summary(reduced)
    if not lines:
        lacking = [each.text for each in notices_of(frames, "gradients") if each.is_minor]
        text = " ".join(lacking) or "No reduced gradient was observed in this run."
        yield line(f"gradients: {text}", "warning")
        return
    yield line("How gradients were reduced", "strong")
    for each in lines:
        style = "bad" if each.is_fault else _STATES.get(each.state, "warning")
        yield (StyledText(f"{each.state:8}", style), StyledText(each.text))
