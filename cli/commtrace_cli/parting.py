"""Place at which the ranks of a run parted before a fault, for the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.table import Table

from commtrace.errors import TraceError
from commtrace_cli.terminal import Text, say

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console


_MOST_BYTES = 64_000_000
"""Size of a run that is still recorded up to which it is analysed at once."""


def print_parting(console: Console, rows: list[dict[str, Any]]) -> None:
    """Print the first of some rows of table `divergences`, if any."""
    from commtrace.analyze.divergence import lines_of

    for row in rows[:1]:
        table = Table.grid(padding=(0, 2), pad_edge=False)
        for name, text in lines_of(row):
            table.add_row(Text(name, style="bold"), Text(text))
        console.print(Padding(table, (1, 0, 0, 2), expand=False))


def print_parting_of_growing(console: Console, folder: Path) -> None:
    """Print where the ranks of a run that is still recorded parted, as far as it is written."""
    from commtrace.analyze import load
    from commtrace.analyze.divergence import divergences
    from commtrace.tracefile import read_trace

    size = sum(path.stat().st_size for path in folder.rglob("*.spool"))
    if size > _MOST_BYTES:
        say(f"note: `commtrace check {folder}` finds where the ranks parted before", always=True)
        return
    try:
        table = divergences(load(read_trace(folder)))
    except TraceError:  # a rank begins, or removes its files
        return
    print_parting(console, _records(table))


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): row[name] for name in row} for row in table.to_dict("records")]
