"""Triage of a hang from the flight-recorder dumps of many ranks: time and memory.

    python -m benchmarks.dumps --dumps 10000 --ranks 16384

Writes pickles as torch's watchdog does, one for each of the first ranks, whose groups are those of
a mesh with axes dp and tp; one rank has stopped before a call that all others wait in. Then `check`
reads them in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import pickle
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

NUM_ENTRIES = 24
TP = 8
CREATED_NS = 1_700_000_000_000_000_000


def dump_of(rank: int, num_ranks: int, stuck: int) -> dict[str, Any]:
    """Return the dump of a rank: calls on its groups in turn, of which the last hangs."""
    first = rank - rank % TP
    members = {
        "0": ("default_pg", range(num_ranks)),
        f"{1 + first // TP}": ("mesh_tp", range(first, first + TP)),
        f"{1 + num_ranks // TP + rank % TP}": ("mesh_dp", range(rank % TP, num_ranks, TP)),
    }
    config = {
        name: {"name": name, "desc": description, "ranks": str([*ranks])}
        for name, (description, ranks) in members.items()
    }
    names, num_of = [*members], dict.fromkeys(members, 0)
    entries = []
    num = NUM_ENTRIES - 5 if rank == stuck else NUM_ENTRIES
    for number in range(num):
        # The last call is one of all ranks, which no rank leaves.
        name = "0" if number == NUM_ENTRIES - 1 else names[1 + number % 2]
        num_of[name] += 1
        entries.append(
            _entry(number, num_of[name], name, members[name][0], rank, number < NUM_ENTRIES - 1)
        )
    return {
        "version": "2.10",
        "entries": entries,
        "pg_config": config,
        "pg_status": {},
        "rank": rank,
    }


def _entry(
    number: int, seq: int, group: str, description: str, rank: int, is_over: bool
) -> dict[str, Any]:
    created = CREATED_NS + 1_000_000 * number + rank
    frames = [
        {
            "name": f"function_{depth}",
            "filename": f"/job/train_{depth}.py",
            "line": 10 * depth + number,
        }
        for depth in range(6)
    ]
    return {
        "record_id": number, "pg_id": int(group != "0"), "process_group": (group, description),
        "collective_seq_id": seq, "p2p_seq_id": 0, "op_id": seq, "is_p2p": False,
        "profiling_name": "nccl:all_reduce", "time_created_ns": created,
        "input_sizes": [[1024, 1024]], "input_dtypes": ["Float"], "output_sizes": [[1024, 1024]],
        "output_dtypes": ["Float"], "state": "completed" if is_over else "started",
        "time_discovered_started_ns": created + 1000,
        "time_discovered_completed_ns": created + 500_000 if is_over else None,
        "retired": is_over, "timeout_ms": 600_000, "frames": frames,
    }  # fmt: skip


def write_dumps(folder: Path, num_dumps: int, num_ranks: int, stuck: int) -> None:
    """Write the dumps in a random order of names, as hosts name them."""
    order = [*range(num_dumps)]
    random.Random(7).shuffle(order)
    for place, rank in enumerate(order):
        dump = dump_of(rank, num_ranks, stuck)
        del dump["rank"]
        name = folder / f"nccl_trace_rank_{rank}"
        name.write_bytes(pickle.dumps(dump, protocol=2))
        os.utime(name, (place, place))


def main() -> None:
    """Write dumps, check them, and print the time and the peak memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dumps", type=int, default=10_000)
    parser.add_argument("--ranks", type=int, default=16_384)
    parser.add_argument("--stuck", type=int, default=1234)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "dumps"
        folder.mkdir()
        write_dumps(folder, chosen.dumps, chosen.ranks, chosen.stuck)
        run = Path(place) / "run.json"
        took = {
            "import": _seconds_of("import", str(folder), "-o", str(run)),
            "check": _seconds_of("check", str(run)),
        }
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
    times = " + ".join(f"{seconds:.1f} s of {name}" for name, seconds in took.items())
    print(f"{chosen.dumps:,} dumps of {chosen.ranks:,} ranks: {times}, at most {peak:.2f} GB")


def _seconds_of(*command: str) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "commtrace_cli", *command], check=False)
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
