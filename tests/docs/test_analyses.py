"""docs/analyses.md agrees with the catalog."""

from __future__ import annotations

import re
import runpy
from dataclasses import replace
from pathlib import Path

from commtrace.analyze import CATALOG
from commtrace.analyze.findings import RULES

DOCS = Path(__file__).parents[2] / "docs"
GENERATOR = runpy.run_path(str(DOCS / "generate" / "analyses.py"))


def test_the_document_is_up_to_date() -> None:
    assert (DOCS / "analyses.md").read_text() == GENERATOR["render"](), "run `make docs`"


def test_every_analysis_every_column_and_every_rule_is_in_it() -> None:
    parts = re.split(r"^## `?(\w+).*$", GENERATOR["render"](), flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert sections.keys() >= CATALOG.keys() | {"diff"}
    for name, analysis in CATALOG.items():
        reported = sections[name]
        if "#the-measures" in reported:
            reported += sections["The"]
        if name != "calls":  # those of table `comm` are in the document of the trace format
            assert all(f"| `{column.name}` |" in reported for column in analysis.columns), name
    assert all(f"- `{rule.name}`: " in sections["findings"] for rule in RULES)


def test_a_changed_unit_changes_the_document() -> None:
    analysis = CATALOG["matrix"]
    first, *others = analysis.columns
    changed = replace(analysis, columns=(replace(first, unit="furlongs"), *others))
    assert GENERATOR["section"](changed) != GENERATOR["section"](analysis)
