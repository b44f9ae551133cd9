"""Datasets: processor time of reading spools, of preparing and of reading, and bytes on disk.

    python -m benchmarks.dataset --calls 1000000 --ranks 16

The run comes from `large_run`, in the spools that a recorder would have written. Each figure is the
processor time of a single process, which other processes on the machine influence little. The bar
applies to spools to Parquet: both passes over the spools, and the writing.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.large_run import Plan
from benchmarks.large_spools import write_spools
from commtrace.tracefile import read_spool
from commtrace.tracefile.dataset import open_dataset, prepare_dataset
from commtrace.units import text_of_bytes

LEAST_CALLS_PER_S = 1_000_000
"""Bar of preparing: calls in a second of processor time."""

MOST_BYTES_PER_CALL = 16.0
"""Bar of the size of a dataset."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of a run.

    Attributes:
        num_calls: Calls of all ranks.
        spool_bytes: Bytes of the spools.
        dataset_bytes: Bytes of the dataset.
        seconds: Processor time, by activity.
    """

    num_calls: int
    spool_bytes: int
    dataset_bytes: int
    seconds: dict[str, float]

    def calls_per_s(self, name: str) -> float:
        """Calls in a second of processor time."""
        return self.num_calls / self.seconds[name]


PREPARING = "spools to Parquet"


def measured(folder: Path, repeats: int = 3) -> Measured:
    """Read and prepare the spools in a folder in this process; of repetitions the best counts."""
    spools = sorted(folder.glob("*.spool"))

    def read() -> None:
        for path in spools:
            read_spool(path)

    def prepare() -> None:
        shutil.rmtree(folder / "dataset", ignore_errors=True)
        prepare_dataset(folder, workers=1)

    prepare()
    dataset = open_dataset(folder)

    def read_columns() -> None:
        dataset.trace(columns={"comm": ("kind", "group", "issue_ns", "complete_ns")})

    steps: dict[str, Callable[[], Any]] = {
        "reading of spools": read,
        PREPARING: prepare,
        "reading of four columns": read_columns,
        "reading of the dataset": dataset.trace,
    }
    return Measured(
        num_calls=dataset.num_rows("comm"),
        spool_bytes=sum(path.stat().st_size for path in spools),
        dataset_bytes=dataset.num_bytes,
        seconds={
            name: min(_seconds(function) for _ in range(repeats))
            for name, function in steps.items()
        },
    )


def _seconds(function: Callable[[], Any]) -> float:
    begin = time.process_time()
    function()
    return time.process_time() - begin


def table_of(found: Measured) -> tuple[Table, bool]:
    """Return the figures beside their bars, and whether all are met."""
    table = Table("", "processor", "calls/s and core", "bar", title=f"{found.num_calls:,} calls")
    is_met = True
    for name, seconds in found.seconds.items():
        least = LEAST_CALLS_PER_S if name == PREPARING else 0
        is_good = found.calls_per_s(name) >= least
        is_met &= is_good
        bar = f">= {least:,}" if least else ""
        table.add_row(
            *(name, f"{seconds:.2f} s", f"{found.calls_per_s(name):,.0f}", bar),
            style="" if is_good else "bold red",
        )
    for name, size in (("spools", found.spool_bytes), ("dataset", found.dataset_bytes)):
        each = size / found.num_calls
        is_good = name == "spools" or each <= MOST_BYTES_PER_CALL
        is_met &= is_good
        bar = f"<= {MOST_BYTES_PER_CALL:.0f} bytes" if name == "dataset" else ""
        table.add_row(name, text_of_bytes(size), f"{each:.1f} bytes a call", bar)
    return table, is_met


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the spools, and print the measurements beside their bars."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dataset", description=__doc__)
    parser.add_argument("--calls", type=int, default=1_000_000, help="default: %(default)s")
    parser.add_argument("--ranks", type=int, default=16, help="a multiple of 8; default: 16")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(num_ranks=given.ranks, num_calls=given.calls)
        found = measured(write_spools(plan, Path(folder, "RUN.comm")))
    table, is_met = table_of(found)
    Console(width=None if sys.stdout.isatty() else 100).print(table)
    sys.exit(not is_met)


if __name__ == "__main__":
    main()
