"""Large files of other tools for the benchmark of importing, written by the makers of the tests.

Each function writes the file of a rank, of about the number of bytes that it is given.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.profiled_trace import write_profile
from tests.commtrace.importers.executions import call
from tests.commtrace.importers.executions import document as execution_document
from tests.commtrace.importers.logs.text_logs import NOISE, Stuck, nccl_call, nccl_init
from tests.commtrace.importers.nsys_exports import Call, Process, write_export

_BYTES_PER_EXPORTED_CALL = 270
_NOISE_PER_LINE = 20


def write_nccl_log(path: Path, rank: int, num_ranks: int, num_bytes: int) -> None:
    """Write a log of NCCL, in which each line is a call."""
    line = nccl_call(rank, 1 << 20, num_ranks)
    with path.open("w") as stream:
        stream.write(nccl_init(rank, num_ranks) + "\n")
        for number in range(num_bytes // len(line)):
            stream.write(nccl_call(rank, number, num_ranks, count=1024 + number % 7) + "\n")


def write_watchdog_log(path: Path, rank: int, num_ranks: int, num_bytes: int) -> None:
    """Write a log in which lines of the watchdog follow other output."""
    noise = "\n".join(NOISE * (_NOISE_PER_LINE // len(NOISE)))
    size = number = 0
    with path.open("w") as stream:
        while size < num_bytes:
            number += 1
            lines = Stuck(rank, number, number + 1, number - 1).lines("2.8")
            size += stream.write("\n".join([noise, *lines]) + "\n")


def write_execution_trace(path: Path, rank: int, num_ranks: int, num_bytes: int) -> None:
    """Write an ExecutionTrace of calls."""
    document = execution_document(rank, num_ranks)
    each = len(json.dumps(call(4, 2, num_ranks, 1, rank)))
    document["nodes"] += [
        node
        for number in range(num_bytes // each)
        for node in call(100 + 2 * number, 2, num_ranks, 3 + number, rank)
    ]
    path.write_text(json.dumps(document))


def write_nsys_export(path: Path, rank: int, num_ranks: int, num_bytes: int) -> None:
    """Write an export of Nsight Systems, of calls after computing kernels."""
    calls = [Call(ts=500 * n) for n in range(num_bytes // _BYTES_PER_EXPORTED_CALL)]
    write_export(path, Process(4711 + rank, rank, calls, rank))


WRITERS: Mapping[str, tuple[str, Callable[[Path, int, int, int], None]]] = {
    "profile": ("rank{}.json", write_profile),
    "nccl": ("rank{}.log", write_nccl_log),
    "watchdog": ("rank{}.log", write_watchdog_log),
    "execution": ("et_rank{}.json", write_execution_trace),
    "nsys": ("rank{}.sqlite", write_nsys_export),
}
"""Name of the file of a rank, and what writes it, by kind of file."""
