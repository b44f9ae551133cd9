"""The table of operators as text: `python -m dtensor_core.rules [--markdown]`.

Operators of a family with the same rule share a line. docs/operators.md is made of the same lines.
"""

from __future__ import annotations

import argparse
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType

from dtensor_core.operators.table import FAMILIES, TABLE

HEADER = ("operators", "rule", "Partials that pass")
# Maximum widths of the columns of operators and rules.
_WIDTHS = (34, 44)


@dataclass(frozen=True, slots=True)
class RuleLine:
    """Operators with the same rule: its notation, or a sentence where notation is insufficient."""

    operators: tuple[str, ...]
    text: str
    passing: str


def families() -> Iterator[tuple[str, str, list[RuleLine]]]:
    """Yield name, description and lines of every family."""
    for name, family in FAMILIES.items():
        yield name, inspect.getdoc(family) or "", _lines(family)


def _lines(family: ModuleType) -> list[RuleLine]:
    grouped: dict[tuple[str, str], list[str]] = {}
    for name in family.ROWS:
        row = TABLE[name]
        grouped.setdefault((row.text, row.passing), []).append(name)
    return [RuleLine(tuple(names), *texts) for texts, names in grouped.items()]


def plain() -> str:
    """Return the table in aligned columns."""
    blocks = [_aligned((HEADER,))]
    for name, description, lines in families():
        title = f"{name}: {description.splitlines()[0]}"
        cells = [(", ".join(line.operators), line.text, line.passing) for line in lines]
        blocks.append(f"{title}\n{textwrap.indent(_aligned(cells), '  ')}")
    return "\n\n".join(blocks)


def _aligned(rows: Sequence[tuple[str, str, str]]) -> str:
    found: list[str] = []
    for *cells, last in rows:
        columns = [
            textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False) or [""]
            for cell, width in zip(cells, _WIDTHS, strict=True)
        ]
        columns.append([last])
        for number in range(max(map(len, columns))):
            parts = [column[number] if number < len(column) else "" for column in columns]
            padded = [f"{part:<{width}}" for part, width in zip(parts, _WIDTHS, strict=False)]
            found.append("  ".join([*padded, parts[-1]]).rstrip())
    return "\n".join(found)


def markdown() -> str:
    """Return the table as a Markdown section per family."""
    blocks: list[str] = []
    for name, description, lines in families():
        rows = [HEADER, ("---",) * len(HEADER)]
        rows += [
            (" ".join(f"`{each}`" for each in line.operators), _code(line.text), line.passing)
            for line in lines
        ]
        table = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
        blocks.append(f"## {name}\n\n{description}\n\n{table}\n")
    return "\n".join(blocks)


def _code(text: str) -> str:
    """Format notation as code, and a sentence unchanged."""
    return f"`{text}`" if "->" in text else text


def main() -> None:
    """Print the table of operators as requested on the command line."""
    parser = argparse.ArgumentParser(prog="python -m dtensor_core.rules", description=__doc__)
    parser.add_argument("--markdown", action="store_true", help="as in docs/operators.md")
    print(markdown() if parser.parse_args().markdown else plain())


if __name__ == "__main__":
    main()
