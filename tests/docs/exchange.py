"""Tables of docs/exchange.md: columns with their fields, and fields with their use."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "exchange.md"
DUMPS, PROFILES = "### Flight-recorder dumps", "### Traces of torch.profiler"
LOGS, SNAPSHOTS = "### Logs of NCCL Inspector", "### Snapshots of NCCL RAS"
_CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True)
class Documented:
    """Statements of the page on a source.

    Attributes:
        columns: For each column, the text in code of its row: fields, and examples.
        fields: For each field, whether it is used.
    """

    columns: dict[str, list[str]]
    fields: dict[str, bool]


def documented(heading: str) -> Documented:
    """Return what the section under a heading says."""
    section = PAGE.read_text().split(f"\n{heading}\n")[1].split("\n### ")[0]
    columns: dict[str, list[str]] = {}
    fields: dict[str, bool] = {}
    for table in re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE):
        head, _, *rows = table.splitlines()
        for row in rows:
            first, second = (cell.strip() for cell in row.strip("|").split(" | ", 1))
            for name in _CODE.findall(first):
                if head.startswith("| column |"):
                    columns[name] = _CODE.findall(second)
                elif head.startswith("| field |"):
                    fields[name] = not second.startswith("ignored")
    return Documented(columns, fields)
