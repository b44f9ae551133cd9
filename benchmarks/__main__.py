"""Prints each case's time, plain, with dtensor_core and with torch's DTensor, and the ratios."""

from __future__ import annotations

import argparse
import sys

import torch
from rich.console import Console
from rich.table import Table
from torch.distributed.device_mesh import DeviceMesh

from benchmarks.cases import CASES, RANKS, Case, fake_ranks, kits
from benchmarks.measure import Contender, Timing, alternate
from commtrace.units import NANOSECONDS_PER_SECOND, text_of_duration

PLAIN = "plain"
PIPED_WIDTH = 140


def contenders_of(case: Case, mesh: DeviceMesh) -> tuple[dict[str, Contender], list[str]]:
    """What runs of a case, and a sentence on each that does not."""
    able: dict[str, Contender] = {PLAIN: case.plain(mesh)}
    unable = []
    for name, kit in kits().items():
        try:
            contender = case.sharded(kit, mesh)
            contender()
        except Exception as error:  # what the other DTensor cannot do is part of the answer
            first_line = str(error).strip().partition("\n")[0]
            unable.append(f"{case.name} with {name}: {type(error).__name__}: {first_line}")
        else:
            able[name] = contender
    return able, unable


def row(case: Case, times: dict[str, Timing]) -> list[str]:
    """The cells of one case."""

    def text(name: str) -> str:
        timing = times.get(name)
        return text_of_duration(timing.seconds * NANOSECONDS_PER_SECOND) if timing else "-"

    def ratio(name: str, to: str) -> str:
        known = name in times and to in times
        return f"{times[name].ratio(times[to]):.2f}" if known else "-"

    return [
        case.name,
        case.about,
        text(PLAIN),
        text("dtensor_core"),
        text("torch"),
        ratio("dtensor_core", "torch"),
        ratio("dtensor_core", PLAIN),
    ]


def main() -> None:
    """Measure the cases that the command line names, or all."""
    names = [case.name for case in CASES]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(names)}")
    parser.add_argument("--rounds", type=int, default=15, help="default: %(default)s")
    parser.add_argument(
        "--turn", type=float, default=0.05, metavar="SECONDS", help="of a contender in a round"
    )
    given = parser.parse_args()
    if unknown := set(given.cases) - set(names):
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    torch.set_num_threads(1)  # what is compared is overhead, not kernels
    table = Table(
        title=f"time per call on one core, rank 0 of {RANKS}, torch {torch.__version__}",
        caption=f"medians of {given.rounds} rounds, measured alternately in one process",
    )
    for heading in ("case", "what"):
        table.add_column(heading)
    for heading in (PLAIN, "dtensor_core", "torch", "/ torch", "/ plain"):
        table.add_column(heading, justify="right")
    notes: list[str] = []
    with fake_ranks() as mesh:
        for case in CASES:
            if given.cases and case.name not in given.cases:
                continue
            able, unable = contenders_of(case, mesh)
            notes += unable
            times = alternate(able, num_rounds=given.rounds, turn_s=given.turn)
            table.add_row(*row(case, times))
    console = Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    console.print(table)
    for note in notes:
        console.print(f"did not run: {note}", markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
