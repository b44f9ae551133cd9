"""Import of large files of other tools: processor time, and memory by the number of files.

    python -m benchmarks.importing --kinds profile nccl nsys --megabytes 100 --files 1 2 4

Each import runs in a process of its own, which starts others to read the files. The processor time
covers all of them. Their memory is sampled while they run: the largest process's memory, and the
sum over all. Each profiler trace takes the memory of a rank while it is read, as many at once as
there are cores; the sum must not exceed the memory of these. Files of other kinds are read by a
single process, which keeps the calls of all: their memory grows with the files.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.foreign_files import WRITERS
from commtrace.units import text_of_bytes, text_of_duration

PROFILE = "profile"
MOST_SECONDS = {PROFILE: 4.0, "nccl": 8.0, "watchdog": 5.0, "execution": 8.0, "nsys": 25.0}
"""Bar of the processor time for 100 MB, by kind; a call takes 180 bytes of a log of NCCL, 550 of an
export of Nsight Systems with the kernels around it."""

MOST_MEMORY = 1.25
"""Bar of memory: a multiple of a single file's, for each file that is read at once."""

SAMPLE_S = 0.02
_PER_BYTES = 100_000_000
_IMPORT = "import sys; from commtrace.importers import import_trace; import_trace(sys.argv[1:])"


@dataclass(frozen=True, slots=True)
class Measured:
    """Import of some files.

    Attributes:
        num_files: Number of files.
        num_bytes: Bytes of all of them.
        cpu_s: Processor time of all processes.
        wall_s: Time that passed.
        largest_bytes: Peak resident memory of the largest process.
        total_bytes: Peak of the sum over all processes.
        kind: What the files are, a key of `WRITERS`.
    """

    num_files: int
    num_bytes: int
    cpu_s: float
    wall_s: float
    largest_bytes: int
    total_bytes: int
    kind: str = PROFILE

    @property
    def cpu_s_per_100_mb(self) -> float:
        """Processor time for 100 MB."""
        return self.cpu_s * _PER_BYTES / self.num_bytes

    def is_fast(self) -> bool:
        """Return whether the processor time is within its bar."""
        return self.cpu_s_per_100_mb <= MOST_SECONDS[self.kind]

    def most_bytes(self, one: Measured, num_cores: int) -> float:
        """Return the bar of the memory of all processes, given the memory of a single file."""
        at_once = min(self.num_files, num_cores) if self.kind == PROFILE else self.num_files
        return MOST_MEMORY * one.total_bytes * at_once


def measured(files: Sequence[Path], kind: str = PROFILE) -> Measured:
    """Import files in a process of its own, and measure it."""
    begin = time.perf_counter()
    command = [sys.executable, "-c", _IMPORT, *map(str, files)]
    importer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    largest = total = 0
    while True:
        ended, status, resources = os.wait4(importer.pid, os.WNOHANG)
        if ended:
            break
        resident = [_resident_bytes(pid) for pid in _processes(importer.pid)]
        largest, total = max([largest, *resident]), max(total, sum(resident))
        time.sleep(SAMPLE_S)
    importer.returncode = os.waitstatus_to_exitcode(status)
    if importer.returncode:
        raise SystemExit(f"the import failed: {importer.returncode}")
    return Measured(
        num_files=len(files),
        num_bytes=sum(path.stat().st_size for path in files),
        cpu_s=resources.ru_utime + resources.ru_stime,
        wall_s=time.perf_counter() - begin,
        largest_bytes=largest,
        total_bytes=total,
        kind=kind,
    )


def _processes(pid: int) -> list[int]:
    """Return a process and its descendants."""
    found = [pid]
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += _processes(int(child))
    except OSError:
        pass  # it has ended
    return found


def _resident_bytes(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def table_of(found: Sequence[Measured], num_cores: int) -> tuple[Table, bool]:
    """Return the figures beside their bars, and whether all are met; the first is of one file."""
    one, is_met = found[0], True
    table = Table(
        *("files", "size", "processor", "per 100 MB", "bar", "passed", "largest process"),
        *("all processes", "bar"),
        title=f"import of files of kind {one.kind} on {num_cores} cores",
    )
    for each in found:
        most = each.most_bytes(one, num_cores)
        is_good = each.is_fast() and each.total_bytes <= most
        is_met &= is_good
        table.add_row(
            *(str(each.num_files), text_of_bytes(each.num_bytes), _seconds(each.cpu_s)),
            *(_seconds(each.cpu_s_per_100_mb), f"<= {_seconds(MOST_SECONDS[each.kind])}"),
            *(_seconds(each.wall_s), text_of_bytes(each.largest_bytes)),
            *(text_of_bytes(each.total_bytes), f"<= {text_of_bytes(most)}"),
            style="" if is_good else "bold red",
        )
    return table, is_met


def _seconds(value: float) -> str:
    return text_of_duration(1e9 * value)


def main() -> None:
    """Write traces, import some of them, and print the measurements beside their bars."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.importing", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100, help="of a file; default: 100")
    parser.add_argument("--files", type=int, nargs="+", default=[1, 2, 4], help="default: 1 2 4")
    parser.add_argument("--kinds", nargs="+", choices=WRITERS, default=[*WRITERS])
    given = parser.parse_args()
    counts = sorted({1, *given.files})
    are_met = [_measure(kind, counts, given.megabytes * 1_000_000) for kind in given.kinds]
    sys.exit(not all(are_met))


def _measure(kind: str, counts: Sequence[int], num_bytes: int) -> bool:
    """Print the measurements of a kind of file, and return whether its bars are met."""
    name, write = WRITERS[kind]
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name.format(rank)) for rank in range(max(counts))]
        for rank, path in enumerate(files):
            write(path, rank, len(files), num_bytes)
        found = [measured(files[:count], kind) for count in counts]
    table, is_met = table_of(found, os.cpu_count() or 1)
    Console(width=None if sys.stdout.isatty() else 130).print(table)
    return is_met


if __name__ == "__main__":
    main()
