"""Spools of the made-up run of `large_run`, in batches like the recorder's.

    python -m benchmarks.large_spools RUN.comm --calls 1000000 --ranks 16

Every call is a row of numbers that refers to its call site, as the recorder writes it. A batch has
5,000 calls; the call sites, groups and steps are in the first batch that needs them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.large_run import START_NS, Plan, large_trace
from commtrace.tracefile import SpoolWriter, StringColumn, Trace, sites_of, spool_name
from commtrace.tracefile.run_folder import make_run_folder
from commtrace.tracefile.spool import NUMBERS, SITES

CALLS_IN_BATCH = 5000


def write_spools(plan: Plan, folder: Path) -> Path:
    """Write a spool per rank into `folder`, and return it."""
    make_run_folder(folder)
    trace = large_trace(plan)
    bounds = np.searchsorted(np.asarray(trace.tables["comm"]["rank"]), range(plan.num_ranks + 1))
    for rank in range(plan.num_ranks):
        with open(folder / spool_name(rank), "wb") as stream:
            _write_rank(trace, rank, slice(bounds[rank], bounds[rank + 1]), stream)
    return folder


def _write_rank(trace: Trace, rank: int, rows: slice, stream: Any) -> None:
    row = dict(zip(trace.tables["ranks"], list(trace.rows("ranks"))[rank], strict=True))
    facts = {name: row[name] for name in ("rank", "host", "pid", "device", "start_ns")}
    run = {"world_size": trace.run["world_size"], "detail": "collective", "command": "large_run"}
    writer = SpoolWriter(stream, {**facts, "boot": "one", "epoch_ns": START_NS, "run": run})
    sites, numbers = _sites_and_numbers(trace, rows)
    groups = [each for each in trace.rows("groups") if str(rank) in each[2].split(",")]
    steps = [each for each in trace.rows("steps") if each[0] == rank]
    first = {"groups": groups, "steps": steps, sites_of("comm"): sites}
    width = len(NUMBERS["comm"])
    for begin in range(0, len(numbers), CALLS_IN_BATCH * width):
        batch = numbers[begin : begin + CALLS_IN_BATCH * width]
        writer.write({} if begin else first, numbers={"comm": batch})
    writer.write({}, {"complete": True, "end_ns": row["end_ns"], "num_dropped": 0})


def _sites_and_numbers(trace: Trace, rows: slice) -> tuple[list[tuple[Any, ...]], list[int]]:
    """Return the distinct call sites of some calls, and the flat rows that refer to them."""
    comm = {name: values[rows] for name, values in trace.tables["comm"].items()}
    codes = [_numbers(comm[column.name]) for column in SITES["comm"]]
    _, first, site = np.unique(
        np.stack(codes, axis=1), axis=0, return_index=True, return_inverse=True
    )
    sites = [tuple([comm[column.name][row] for column in SITES["comm"]]) for row in first]
    each = [_numbers(comm[column.name]) for column in NUMBERS["comm"][:-1]]
    return sites, np.stack([*each, site.ravel()], axis=1).ravel().tolist()


def _numbers(values: Any) -> np.ndarray:
    return np.asarray(values.codes if isinstance(values, StringColumn) else values)


def main() -> None:
    """Write the spools."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large_spools", description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder to write")
    parser.add_argument("--calls", type=int, default=1_000_000, help="default: %(default)s")
    parser.add_argument("--ranks", type=int, default=16, help="a multiple of 8; default: 16")
    given = parser.parse_args()
    write_spools(Plan(num_ranks=given.ranks, num_calls=given.calls), given.folder)
    size = sum(path.stat().st_size for path in given.folder.glob("*.spool"))
    print(f"wrote {given.folder} ({size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
