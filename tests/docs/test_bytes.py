"""docs/bytes.md agrees with the table of collectives."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
GENERATOR = runpy.run_path(str(DOCS / "generate" / "bytes.py"))


def test_the_document_is_generated_from_the_table() -> None:
    assert (DOCS / "bytes.md").read_text() == GENERATOR["render"](), "run `make docs`"
