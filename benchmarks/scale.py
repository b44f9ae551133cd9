"""Tables of a run that is larger than memory: passes over its parts, time and peak memory.

    python -m benchmarks.scale --calls 10000000 --ranks 64
    python -m benchmarks.scale --calls 100000000 --ranks 1024 --limit 2

A made-up run (`large_run`) is written as a dataset; then all tables but the lists of single calls,
the check, the findings and the notices are computed by a process of its own, with a worker
for each core, which then writes the page. Single tables are computed once more, of the run that is
prepared by then, and all of its steps are replayed with each change of `--replay`. The limit holds
for the private memory of each process.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.large_run import Plan, write_dataset
from commtrace.tracefile.run_folder import PREPARED
from commtrace.units import text_of_bytes, text_of_duration

LISTS = ("calls", "activity")
"""Tables with a row for each call, which are as large as the run."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of an analysis.

    Attributes:
        passes: Function, number and seconds of the passes for it, the longest first.
        seconds: Time of the analyses.
        page_s: Time of the page after that.
        cpu_s: Processor time of all processes.
        peak_bytes: Peak memory of this process, and of its largest worker.
    """

    passes: list[tuple[str, int, float]]
    seconds: float
    page_s: float
    cpu_s: float
    peak_bytes: tuple[int, int]


def measured(
    folder: Path,
    names: Sequence[str],
    num_workers: int | None,
    rows_of_part: int | None,
    output: Path | None = None,
) -> Measured:
    """Compute tables of the run in a folder; and with a page, the notices, too."""
    from commtrace.analyze import CATALOG, notices_of
    from commtrace.analyze.stored import StoredRun
    from commtrace.analyze.stored.stored_run import ROWS_OF_PART
    from commtrace.report import write_report
    from commtrace.tracefile.dataset import open_dataset
    from commtrace.workers import Workers

    lasted: dict[str, list[float]] = {}

    class Timed(StoredRun):
        def other_results(self, function: Any, *args: Any) -> Iterator[bytes]:
            begin = time.perf_counter()
            yield from super().other_results(function, *args)
            add(function, begin)

        def arrays_of(self, facts: Any, in_memory: Any) -> Any:
            begin = time.perf_counter()
            found = super().arrays_of(facts, in_memory)
            add(facts.add, begin)
            return found

    def add(function: Any, begin: float) -> None:
        name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        lasted.setdefault(name, []).append(time.perf_counter() - begin)

    begin = time.perf_counter()
    with Workers("analyse the run", num_workers) as workers:
        run = Timed(
            open_dataset(folder), rows_of_part=rows_of_part or ROWS_OF_PART, workers=workers
        )
        functions: list[Callable[..., Any]] = [CATALOG[name].function for name in names]
        if output is not None:
            functions.append(notices_of)
        for function in functions:
            function(run)
        computed = time.perf_counter()
        if output is not None:
            write_report(run, output)
        written = time.perf_counter()
    passes = [(name, len(each), sum(each)) for name, each in lasted.items()]
    passes.sort(key=lambda each: -each[2])
    return _measured(passes, computed - begin, written - computed)


def replayed(folder: Path, num_workers: int | None, change: str) -> Measured:
    """Replay all steps of the run in a folder with a change."""
    from commtrace.analyze.stored import StoredRun
    from commtrace.analyze.whatif.asked import what_if
    from commtrace.tracefile.dataset import open_dataset
    from commtrace.workers import Workers

    begin = time.perf_counter()
    with Workers("replay the run", num_workers) as workers:
        what_if(StoredRun(open_dataset(folder), workers=workers), [change], all_steps=True)
    return _measured([], time.perf_counter() - begin)


def _measured(
    passes: list[tuple[str, int, float]], seconds: float, page_s: float = 0.0
) -> Measured:
    own, others = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    cpu_s = sum(each.ru_utime + each.ru_stime for each in (own, others))
    peaks = _peak_bytes() or own.ru_maxrss * 1024, others.ru_maxrss * 1024
    return Measured(passes, seconds, page_s, cpu_s, peaks)


def main() -> None:
    """Write the run, compute its tables, and print passes, times and memory."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--calls", type=int, default=2_000_000, help="default: %(default)s")
    parser.add_argument("--ranks", type=int, default=64, help="a multiple of 8; default: 64")
    parser.add_argument("--workers", type=int, help="processes; default: one for each core")
    parser.add_argument("--part", type=int, help="rows of a part, about")
    parser.add_argument("--limit", type=float, help="GB of memory of a process; default: none")
    parser.add_argument("--single", nargs="*", help="tables by themselves; default: all of them")
    parser.add_argument("--replay", nargs="*", default=[], help="changes, for all steps")
    given = parser.parse_args()
    if given.limit is not None:
        # The default pool of Arrow reserves a GB of addresses.
        os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"
    plan = Plan(num_ranks=given.ranks, num_calls=given.calls)
    num_calls = plan.calls_per_step * plan.num_steps * plan.num_ranks
    console = Console()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "RUN.comm"
        folder.mkdir()
        write_dataset(plan, folder)
        every = [name for name in _catalog() if name not in LISTS]
        apart = partial(_apart, given.limit)
        output = Path(name) / "report.html"
        found = apart(measured, folder, every, given.workers, given.part, output)
        listed = Table("pass for", "times", "time")
        for name_of_pass, num, lasted in found.passes[:40]:
            listed.add_row(name_of_pass, str(num), text_of_duration(int(lasted * 1e9)))
        console.print(listed)
        text = f"{num_calls:,} calls of {plan.num_ranks} ranks: {_text(found)}"
        console.print(text, soft_wrap=True)
        console.print(f"size of the page: {text_of_bytes(output.stat().st_size)}")
        console.print(f"{found.cpu_s / num_calls * 1e6:.1f} µs of processor time per call")
        kept = [path for path in folder.rglob(f"{PREPARED}/**/*") if path.is_file()]
        size = sum(path.stat().st_size for path in kept)
        console.print(f"{text_of_bytes(size)} are kept for the next command")
        slowest = Table("of the prepared run", "time", "of a process")

        def add(name: str, single: Measured) -> None:
            lasted = text_of_duration(int(single.seconds * 1e9))
            slowest.add_row(name, lasted, text_of_bytes(max(single.peak_bytes)))

        for name in every if given.single is None else given.single:
            add(name, apart(measured, folder, [name], given.workers, given.part))
        for change in given.replay:
            add(f"whatif --all-steps {change}", apart(replayed, folder, given.workers, change))
        console.print(slowest)


def _catalog() -> list[str]:
    from commtrace.analyze import CATALOG

    return [*CATALOG]


def _apart(limit_gb: float | None, measure: Callable[..., Measured], *args: Any) -> Measured:
    """Measure in a process that is started afresh, so that only the analyses use its memory."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, initializer=_limit, initargs=(limit_gb,)) as pool:
        return pool.submit(measure, *args).result()


def _peak_bytes() -> int:
    """Return the peak memory of this process; 0 if the system does not state it.

    The figure of `getrusage` includes the parent process's, too.
    """
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _limit(limit_gb: float | None) -> None:
    """Limit the private memory of this process, and of each that it starts."""
    if limit_gb is not None:
        size = int(limit_gb * 1e9)
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def _text(found: Measured) -> str:
    own, of_worker = map(text_of_bytes, found.peak_bytes)
    times = found.seconds, found.page_s, found.cpu_s
    tables, page, cpu = (text_of_duration(int(each * 1e9)) for each in times)
    return (
        f"tables {tables}, page {page}, processor time {cpu}; peak memory {own}, of a worker "
        f"{of_worker}"
    )


if __name__ == "__main__":
    main()
