"""Tables of a run that is larger than memory: passes over its parts, time and peak memory.

    python -m benchmarks.scale --calls 10000000 --ranks 64

A made-up run (`large_run`) is written as a dataset; then all tables but the lists of single calls
are computed together in a process of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.large_run import Plan, write_dataset
from commtrace.units import text_of_bytes, text_of_duration

LISTS = ("calls", "activity")
"""Tables with a row for each call, which are as large as the run."""


def tables_of(folder: Path) -> tuple[list[tuple[str, int, float]], float, int]:
    """Compute all tables of the run in a folder.

    Returns:
        Sort, number of questions and seconds of each pass; seconds in all; and peak memory.
    """
    from commtrace.analyze import CATALOG, notices_of
    from commtrace.analyze.shared_passes import Question
    from commtrace.analyze.stored import StoredRun
    from commtrace.tracefile.dataset import open_dataset

    passes: list[tuple[str, int, float]] = []

    class Timed(StoredRun):
        def _answer(self, sort: str, questions: Sequence[Question]) -> None:
            begin = time.perf_counter()
            super()._answer(sort, questions)
            passes.append((sort, len(questions), time.perf_counter() - begin))

    begin = time.perf_counter()
    run = Timed(open_dataset(folder))
    tables = [each.function for name, each in CATALOG.items() if name not in LISTS]
    run.together(partial(table, run) for table in [*tables, notices_of])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return passes, time.perf_counter() - begin, peak


def main() -> None:
    """Write the run, compute its tables, and print the passes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--calls", type=int, default=2_000_000, help="default: %(default)s")
    parser.add_argument("--ranks", type=int, default=64, help="a multiple of 8; default: 64")
    given = parser.parse_args()
    plan = Plan(num_ranks=given.ranks, num_calls=given.calls)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "RUN.comm"
        folder.mkdir()
        write_dataset(plan, folder)
        # Started afresh, so that the memory is that of the analyses alone.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            passes, seconds, peak = pool.apply(tables_of, (folder,))
    listed = Table("pass over", "questions", "time")
    for sort, num, lasted in passes:
        listed.add_row(sort, str(num), text_of_duration(int(lasted * 1e9)))
    console = Console()
    console.print(listed)
    num_calls = plan.calls_per_step * plan.num_steps * plan.num_ranks
    console.print(
        f"{num_calls:,} calls of {plan.num_ranks} ranks: {text_of_duration(int(seconds * 1e9))}, "
        f"{seconds / num_calls * 1e6:.1f} µs per call, peak memory {text_of_bytes(peak)}"
    )


if __name__ == "__main__":
    main()
