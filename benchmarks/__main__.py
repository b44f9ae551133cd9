"""Prints each case's figures with dtensor_core and with torch's DTensor, and their ratio."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.cases import CASES, Case
from benchmarks.kit import OURS, RANKS, TORCHS, fake_ranks, kits, mesh_of
from benchmarks.measure import Figures, bytes_each, first_calls, repeated
from commtrace.units import NANOSECONDS_PER_SECOND, text_of_duration

PIPED_WIDTH = 120
HEADINGS = ("case", "what", "dtensor_core", "torch", "ratio", "bar", "verdict")


@dataclass(frozen=True, slots=True)
class Effort:
    """Measurement budget of the benchmarks.

    Attributes:
        num_rounds: Rounds of a repeated case.
        turn_s: Seconds that a contender runs in each round.
        num_first: Rounds of a case of kind "first".
        num_objects: Objects created per round of a case of kind "bytes".
    """

    num_rounds: int = 60
    turn_s: float = 0.005
    num_first: int = 12
    num_objects: int = 20_000


def contenders_of(case: Case) -> tuple[dict[str, Any], list[str]]:
    """Return the contenders that run the case, by package, and a message for each that fails."""
    mesh = mesh_of(case.mesh_shape)
    able: dict[str, Any] = {}
    unable = []
    for name, kit in kits().items():
        try:
            contender = case.make(kit, mesh)
            (contender(0) if case.kind == "first" else contender)()
        except Exception as error:  # a case that torch's DTensor cannot run is part of the result
            first_line = str(error).strip().partition("\n")[0]
            unable.append(f"{case.name} with {name}: {type(error).__name__}: {first_line}")
        else:
            able[name] = contender
    return able, unable


def measured(case: Case, contenders: dict[str, Any], effort: Effort) -> dict[str, Figures]:
    """Measure a case with the method that its `kind` asks for."""
    if case.kind == "first":
        return first_calls(contenders, num_rounds=effort.num_first)
    if case.kind == "bytes":
        return bytes_each(contenders, num_rounds=4, num_objects=effort.num_objects)
    return repeated(contenders, num_rounds=effort.num_rounds, turn_s=effort.turn_s)


def verdict(case: Case, figures: dict[str, Figures]) -> str:
    """Compare a case with its bar; "torch can't" if only the other contender is missing."""
    if OURS not in figures:
        return "missed"
    if TORCHS not in figures:
        return "torch can't"
    return "ok" if figures[OURS].ratio(figures[TORCHS]) <= case.bar else "missed"


def row(case: Case, figures: dict[str, Figures]) -> list[str]:
    """Format the table row of a case."""

    def text(name: str) -> str:
        if name not in figures:
            return "-"
        median = figures[name].median
        if case.kind == "bytes":
            return f"{median:.0f} B"
        return text_of_duration(median * NANOSECONDS_PER_SECOND)

    both = len(figures) == 2
    ratio = f"{figures[OURS].ratio(figures[TORCHS]):.2f}" if both else "-"
    cells = [case.name, case.about, text(OURS), text(TORCHS), ratio]
    return [*cells, f"{case.bar:.2f}", verdict(case, figures)]


def chosen(names: Sequence[str]) -> list[Case]:
    """Select the cases with the given names; an empty sequence selects all."""
    return [case for case in CASES if not names or case.name in names]


def main() -> None:
    """Measure the cases named on the command line, or all of them."""
    names = [case.name for case in CASES]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(names)}")
    parser.add_argument("--rounds", type=int, default=60, help="default: 60")
    parser.add_argument(
        "--check", action="store_true", help="end with code 1 if a case is above its bar"
    )
    given = parser.parse_args()
    if unknown := set(given.cases) - set(names):
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    effort = Effort(num_rounds=given.rounds, num_first=max(2, given.rounds // 5))
    torch.set_num_threads(1)  # the comparison is of overhead, not of kernels
    table = Table(
        title=f"per call on one core, rank 0 of {RANKS}, torch {torch.__version__}",
        caption="medians; a ratio is the median of those within rounds, in which both alternate",
    )
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in HEADINGS[:2] else "right")
    notes: list[str] = []
    missed: list[str] = []
    with fake_ranks():
        for case in chosen(given.cases):
            able, unable = contenders_of(case)
            notes += unable
            figures = measured(case, able, effort)
            table.add_row(*row(case, figures))
            if verdict(case, figures) == "missed":
                missed.append(case.name)
    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    console.print(table)
    for note in notes:
        console.print(f"did not run: {note}", markup=False, soft_wrap=True)
    if missed:
        console.print(f"above the bar: {', '.join(missed)}")
    if missed and given.check:
        sys.exit(1)


if __name__ == "__main__":
    main()
