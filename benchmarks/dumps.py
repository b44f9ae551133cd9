"""Triage of a hang from the flight-recorder dumps of many ranks: time and memory.

    python -m benchmarks.dumps --dumps 10000 --ranks 16384

Writes pickles as torch's watchdog does, one for each of the first ranks, whose groups form a mesh
with axes dp and tp, and the program that their frames are of. A rank skips the last call
over dp by a branch, and waits in the call of all ranks, while its peers wait for it. `check` reads
them in a process of its own; exits with 1 if it does not name the rank and the branch.
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

NUM_ROUNDS = 11
TP = 8
PROGRAM = """import torch.distributed as dist


def step(model, batch, tp, dp):
    loss = model(batch)
    dist.all_reduce(loss, group=tp)
    if loss.isfinite():
        dist.all_reduce(loss, group=dp)


def main(model, batches, total, tp, dp):
    for batch in batches:
        step(model, batch, tp, dp)
    dist.all_reduce(total)
"""
TORCH = "/opt/venv/lib/python3.11/site-packages/torch/distributed"
OVER_TP, BRANCH, OVER_DP, STEP, OVER_ALL = 6, 7, 8, 13, 14
CREATED_NS = 1_700_000_000_000_000_000


def dump_of(rank: int, num_ranks: int, stuck: int, program: Path) -> dict[str, Any]:
    """Return the dump of a rank: calls on its groups in turn, and the call of all, which hangs."""
    first = rank - rank % TP
    dp_of_stuck = rank % TP == stuck % TP
    groups = {
        "all": ("0", "default_pg", range(num_ranks)),
        "tp": (f"{1 + first // TP}", "mesh_tp", range(first, first + TP)),
        "dp": (f"{1 + num_ranks // TP + rank % TP}", "mesh_dp", range(rank % TP, num_ranks, TP)),
    }
    called = [("tp", OVER_TP), ("dp", OVER_DP)] * NUM_ROUNDS
    if rank == stuck:
        called.pop()
    if rank == stuck or not dp_of_stuck:
        called.append(("all", OVER_ALL))
    num_of = dict.fromkeys(groups, 0)
    entries = []
    for number, (axis, line) in enumerate(called):
        name, description, _ = groups[axis]
        num_of[axis] += 1
        in_step = [("step", line), ("main", STEP)] if axis != "all" else [("main", line)]
        in_torch = [(f"wrapper_{depth}", 10 * depth + 1) for depth in range(3)]
        frames = [
            {"name": function, "filename": f"{TORCH}/{function}.py", "line": at}
            for function, at in in_torch
        ] + [{"name": function, "filename": str(program), "line": at} for function, at in in_step]
        is_over = number < len(called) - 1
        entries.append(
            _entry(number, num_of[axis], (name, description), rank, is_over=is_over, frames=frames)
        )
    return {
        "version": "2.10",
        "entries": entries,
        "pg_config": {
            name: {"name": name, "desc": description, "ranks": str([*ranks])}
            for name, description, ranks in groups.values()
        },
        "pg_status": {},
    }


def _entry(
    number: int, seq: int, group: tuple[str, str], rank: int, *, is_over: bool, frames: list[Any]
) -> dict[str, Any]:
    created = CREATED_NS + 1_000_000 * number + rank
    return {
        "record_id": number, "pg_id": int(group[0] != "0"), "process_group": group,
        "collective_seq_id": seq, "p2p_seq_id": 0, "op_id": seq, "is_p2p": False,
        "profiling_name": "nccl:all_reduce", "time_created_ns": created,
        "input_sizes": [[1024, 1024]], "input_dtypes": ["Float"], "output_sizes": [[1024, 1024]],
        "output_dtypes": ["Float"], "state": "completed" if is_over else "started",
        "time_discovered_started_ns": created + 1000,
        "time_discovered_completed_ns": created + 500_000 if is_over else None,
        "retired": is_over, "timeout_ms": 600_000, "frames": frames,
    }  # fmt: skip


def write_dumps(folder: Path, num_dumps: int, num_ranks: int, stuck: int) -> None:
    """Write the program, and the dumps in a random order of names, as hosts name them."""
    program = folder.with_name("train.py")
    program.write_text(PROGRAM)
    order = [*range(num_dumps)]
    random.Random(7).shuffle(order)
    for place, rank in enumerate(order):
        dump = dump_of(rank, num_ranks, stuck, program)
        name = folder / f"nccl_trace_rank_{rank}"
        name.write_bytes(pickle.dumps(dump, protocol=2))
        os.utime(name, (place, place))


def main() -> int:
    """Write dumps, check them, and print the time and the peak memory; 1 if the answer is wrong."""
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
        took, text = {}, ""
        for command in (["import", str(folder), "-o", str(run)], ["check", str(run)]):
            begin = time.perf_counter()
            text = _output_of(*command)
            took[command[0]] = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
    times = " + ".join(f"{seconds:.1f} s of {name}" for name, seconds in took.items())
    print(f"{chosen.dumps:,} dumps of {chosen.ranks:,} ranks: {times}, at most {peak:.2f} GB")
    is_named = f"Rank {chosen.stuck} " in text.partition("\n")[0] and f"train.py:{BRANCH}" in text
    return 0 if is_named else 1


def _output_of(*command: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "commtrace_cli", *command],
        check=False, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    print(ran.stdout)
    return ran.stdout


if __name__ == "__main__":
    sys.exit(main())
