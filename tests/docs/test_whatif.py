"""docs/whatif.md agrees with the table of changes."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from commtrace.analyze.replay.changes import VERBS, parsed

DOCS = Path(__file__).parents[2] / "docs"
GENERATOR = runpy.run_path(str(DOCS / "generate" / "whatif.py"))


def test_the_document_is_generated_from_the_table() -> None:
    assert (DOCS / "whatif.md").read_text() == GENERATOR["render"](), "run `make docs`"


def test_every_change_of_the_document_is_one() -> None:
    text = (DOCS / "whatif.md").read_text()
    named = re.findall(r"^\| `(\w+)` \| .*`(.+)` \|$", text, re.M)
    in_table = {name: parsed(example).verb for name, example in named if name in VERBS}
    assert in_table == {name: name for name in VERBS}
    for change in re.findall(r'commtrace whatif \S+ "([^"]+)"', text):
        assert parsed(change).verb in VERBS
