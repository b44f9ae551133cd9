"""docs/trace-format.md agrees with the schema."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

from commtrace.schema import TABLES

DOCS = Path(__file__).parents[2] / "docs"
GENERATOR = runpy.run_path(str(DOCS / "generate" / "trace_format.py"))


def test_the_document_is_up_to_date() -> None:
    written = (DOCS / "trace-format.md").read_text()
    assert written == GENERATOR["render"](), "run `make docs`"


def test_a_changed_column_changes_the_document() -> None:
    first, *others = TABLES["comm"]
    lines = GENERATOR["table_lines"]
    assert lines([replace(first, unit="furlongs"), *others]) != lines([first, *others])


def test_a_bar_in_a_meaning_stays_in_its_cell() -> None:
    column = replace(TABLES["comm"][0], meaning="this | that")
    (row,) = GENERATOR["table_lines"]([column])[2:]
    assert row.endswith("| this \\| that |")
