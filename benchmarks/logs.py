"""Processor time and memory of importing a large log of NCCL Inspector.

    python -m benchmarks.logs --lines 1000000

It writes the log of a process in format v4.2 and in v4.3, imports each, and prints the processor
time of a line: of `json.loads` alone, of reading the file, and of the import as a whole.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from commtrace.importers import import_trace
from commtrace.importers.input_files import INSPECTOR, Document
from commtrace.importers.inspector.lines import inspector_file_of

DUMPED_US = 1_752_867_229_276_385
HEADER = {"id": "0x7f8c496ae9f661", "comm_name": "unknown", "rank": 0, "n_ranks": 8, "nnodes": 1}


def write_log(path: Path, num_lines: int, *, is_shared: bool) -> None:
    """Write the log of a rank, with a header in each line or in the first."""
    metadata = {
        "inspector_output_format_version": "v4.3" if is_shared else "v4.2", "git_rev": "9019a1912",
        "rec_mechanism": "nccl_profiler_interface", "dump_timestamp_us": DUMPED_US,
        "hostname": "node0", "pid": 4711,
    }  # fmt: skip
    context = {"header": HEADER, "metadata": metadata}
    counts = {"coll_records": num_lines, "p2p_records": 0}
    with path.open("w") as stream:
        stream.write(json.dumps(context | {"dump_stats": counts}) + "\n")
        for number in range(num_lines):
            line: dict[str, Any] = {} if is_shared else context
            stream.write(json.dumps(line | {"coll_perf": _operation(number)}) + "\n")


def _operation(number: int) -> dict[str, Any]:
    return {
        "coll": "AllReduce", "coll_algo": "RING", "coll_proto": "LL", "coll_sn": number,
        "coll_msg_size_bytes": 1 << 20, "coll_exec_time_us": 100 + number % 7,
        "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": 10.48576, "coll_busbw_gbs": 0.0,
    }  # fmt: skip


def main() -> None:
    """Write and import logs, and print what a line takes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=200_000)
    num_lines = parser.parse_args().lines
    with tempfile.TemporaryDirectory() as place:
        for is_shared in (False, True):
            path = Path(place) / "node0-pid4711.log"
            write_log(path, num_lines, is_shared=is_shared)
            data = path.read_bytes()
            document = Document(path, INSPECTOR, data)
            took = {
                "json.loads": _seconds_of(lambda own=data: [*map(json.loads, own.splitlines())]),
                "reading": _seconds_of(lambda own=document: inspector_file_of(own)),
                "import": _seconds_of(lambda own=path: import_trace([own])),
            }
            times = ", ".join(
                f"{seconds / num_lines * 1e6:.1f} µs of {name}" for name, seconds in took.items()
            )
            print(f"{'v4.3' if is_shared else 'v4.2'}: {num_lines:,} lines, each {times}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"at most {peak:.2f} GB")


def _seconds_of(function: Callable[[], object]) -> float:
    begin = time.process_time()
    function()
    return time.process_time() - begin


if __name__ == "__main__":
    main()
