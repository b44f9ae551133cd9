"""Write docs/analyses.md: every analysis with its columns and units, from the catalog.

Run by `make docs`; a test compares the file with the output of this module.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from pathlib import Path

from commtrace.analyze import CATALOG, Analysis
from commtrace.analyze.comparisons.diff import DIFF
from commtrace.analyze.findings import RULES
from commtrace.analyze.measures.measures import MEASURES
from commtrace.analyze.traffic.by_place import FLAT
from commtrace.schema import COMM, Column

TARGET = Path(__file__).parents[1] / "analyses.md"

ABOUT = """\
# The analyses

Written by `make docs` from `commtrace.analyze.CATALOG`: change the analyses, not this file.

An analysis is a question about a run, and a function from the run's tables to a table that answers
it. The command line, the page, notebooks and tests take analyses from the catalog:

    commtrace table run.json by_module --csv
    commtrace.load("run.json").table("by_module")

Durations are in `ns`, points in time in `unix ns`, sizes in bytes, and shares are fractions of 1.
An unknown number is -1 in a column of integers and nan in a column of floats.
`commtrace.analyze.notices_of` returns sentences about data that the trace lacks for a table; every
command and the page show them.
"""
_UNSEEN = """No rule sees these: norms of tensors that are reduced one by one, where one reduction
of all would do; the bubble of a pipeline by hand that has a single micro-batch, which looks like
ranks that wait for each other; and rings of sends and receives in series that take less than 5 % of
the steps."""


def escaped(cell: str) -> str:
    """Escape pipes, so that a cell cannot end its own column."""
    return cell.replace("|", "\\|")


def table_lines(columns: Sequence[Column]) -> list[str]:
    """Format a Markdown table of columns."""
    rows = [
        (f"`{each.name}`", each.type.__name__, each.unit, escaped(each.meaning)) for each in columns
    ]
    header = ("column", "type", "unit", "meaning")
    return [f"| {' | '.join(row)} |" for row in (header, ("---",) * len(header), *rows)]


def about(analysis: Analysis) -> str:
    """Return the description of an analysis.

    It is its module's docstring without the first paragraph, or else the docstring of its function,
    as for a flat table.
    """
    docstring = (sys.modules[analysis.function.__module__].__doc__ or "").strip()
    of_module = "" if analysis in FLAT else docstring.partition("\n\n")[2]
    return of_module or as_noun_phrase(inspect.getdoc(analysis.function) or "")


def as_noun_phrase(docstring: str) -> str:
    """Turn `Return a row per kind.` into `A row per kind.`, on one line."""
    text = " ".join(docstring.split()).removeprefix("Return ")
    return text[:1].upper() + text[1:]


def section(analysis: Analysis) -> str:
    """Format the section of one analysis: its question, its numbers and its columns."""
    columns = list(analysis.columns)
    shared = ""
    for group, text in ((MEASURES, "[the measures](#the-measures)"), (COMM, "all of table `comm`")):
        if all(column in columns for column in group):
            columns = [column for column in columns if column not in group]
            shared = f"and {text}" if columns else text
    head = [f"## `{analysis.name}`: {analysis.title}", "", f"*{analysis.question}*", ""]
    rows = [*table_lines(columns), ""] if columns else []
    return "\n".join([*head, about(analysis), "", *rows, *([shared + ".", ""] if shared else [])])


def rules() -> str:
    """Format the list of rules behind the table of findings."""
    lines = ["### The rules", ""]
    lines += [
        f"- `{rule.name}`: {rule.about}. {as_noun_phrase(inspect.getdoc(rule.find) or '')} Needs "
        f"{'; '.join(need.about for need in rule.needs)}."
        for rule in RULES
    ]
    lines += [
        "",
        "A rule is not evaluated on a trace that lacks what it needs, and says so.",
        "",
        _UNSEEN,
    ]
    return "\n".join([*lines, ""])


def render() -> str:
    """Render the document."""
    measures = (sys.modules["commtrace.analyze.measures.measures"].__doc__ or "").strip()
    parts = [ABOUT, "\n".join(["## The measures", "", measures, "", *table_lines(MEASURES), ""])]
    for analysis in (*CATALOG.values(), DIFF):
        parts.append(section(analysis))
        if analysis.name == "findings":
            parts.append(rules())
    return "\n".join(parts)


if __name__ == "__main__":
    TARGET.write_text(render())
    print(f"wrote {TARGET}")
