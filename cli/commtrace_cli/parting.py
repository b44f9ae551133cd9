"""Place at which the ranks of a run parted before a fault, for the terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table

from commtrace.errors import TraceError
from commtrace_cli.terminal import Text, say

if TYPE_CHECKING:
    from rich.console import Console


_MOST_BYTES = 64_000_000
"""Size of a run that is still recorded up to which it is analysed at once."""


def print_lines(console: Console, lines: Iterable[tuple[str, str]]) -> None:
    """Print lines of a place, each with its title, if there are any."""
    table = Table.grid(padding=(0, 2), pad_edge=False)
    for name, text in lines:
        table.add_row(Text(name, style="bold"), Text(text))
    if table.row_count:
        console.print(Padding(table, (1, 0, 0, 2), expand=False))


def print_parting_of_growing(console: Console, folder: Path, blamed: Collection[int]) -> None:
    """Print where the ranks of a run that is still recorded parted, as far as it is written.

    Args:
        console: The terminal.
        folder: The folder of the run.
        blamed: Ranks that the alarm blames, whose parting is printed rather than another.
    """
    from commtrace.analyze import load
    from commtrace.analyze.divergence import divergences, lines_of
    from commtrace.tracefile import read_trace

    size = sum(path.stat().st_size for path in folder.rglob("*.spool"))
    if size > _MOST_BYTES:
        say(f"note: `commtrace check {folder}` finds where the ranks parted before", always=True)
        return
    try:
        table = divergences(load(read_trace(folder)))
    except TraceError:  # a rank begins, or removes its files
        return
    ranks = {str(rank) for rank in blamed}
    rows = [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]
    rows.sort(key=lambda row: ranks.isdisjoint(str(row["ranks"]).split(",")))
    for row in rows[:1]:
        print_lines(console, lines_of(row))
