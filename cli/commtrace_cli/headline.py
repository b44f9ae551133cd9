"""The answer of a run in a few lines, in the order of the page's tiles and cards.

71.1%       exposed communication, of a step of 290 ms
22.8%       waiting for late ranks, of step time, 38% of it for rank 2
yes         ranks consistent: all ranks agree in kind, size and order
saves 50 ms (17%)  Ranks were ready to run but had no core for 10% of the time
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from commtrace_cli.terminal import Text
from commtrace_cli.verdict import MOST_ROWS

if TYPE_CHECKING:
    from rich.console import Console

    from commtrace.analyze import Frames
    from commtrace.selection import Selection

_MOST_CHANGES = 3


def print_headline(
    console: Console, frames: Frames, selection: Selection, trace: Path
) -> list[str | Path]:
    """Print what steps are lost to, whether ranks agree, and the changes that save most.

    Returns:
        The command that says more of a fault, or replays the best change; empty without either.
    """
    from commtrace.analyze.consistency import BAD, GOOD
    from commtrace.analyze.replay.words import LIMIT
    from commtrace.report.answers import Answers
    from commtrace.report.cards import consistency_summary
    from commtrace.report.changes import help_of
    from commtrace.report.tiles import answer_tiles

    answers = Answers(frames)
    found = consistency_summary(answers) if frames.num_calls <= MOST_ROWS else None
    helps = help_of(answers, selection)
    grid = Table.grid(padding=(0, 2, 0, 0))
    cards = helps.cards[:_MOST_CHANGES]
    for tile in answer_tiles(answers, found, helps.tile):
        if not (cards and tile is helps.tile):
            style = {BAD: "bold red", GOOD: "bold green"}.get(tile.mood, "bold")
            joined = ", " if tile.note.startswith("of ") else ": "
            grid.add_row(
                Text(tile.value, style=style), Text(f"{tile.title.lower()}{joined}{tile.note}")
            )
    for card in cards:
        is_limit = card.bound == LIMIT
        saves = f"{'at most' if is_limit else 'saves'} {card.saves} ({card.share})"
        style = "dim" if is_limit else "bold yellow"
        grid.add_row(Text(saves, style=style), Text(card.title, style="dim" if is_limit else ""))
    console.print(grid)
    if found is not None and found.mood == BAD:
        return ["commtrace", "check", trace]
    has_change = any(card.bound != LIMIT for card in cards)
    return ["commtrace", "whatif", trace] if has_change else []


def headline_facts(frames: Frames) -> dict[str, Any]:
    """Return what steps are lost to, for a program; unknown values are None."""
    from commtrace.analyze.waits.exposed_share import exposed_share

    facts = asdict(exposed_share(frames))
    is_unknown = {name: value == -1 or value != value for name, value in facts.items()}
    known = {name: None if is_unknown[name] else value for name, value in facts.items()}
    return {"exposed_share": known}
