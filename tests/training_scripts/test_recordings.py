"""Recordings of training scripts unaware of commtrace, compared with torch's C++ counters.

Each script of `scripts` runs once under `commtrace run`. gloo's flight recorder on each rank holds
what the backend was asked for, by whichever caller: c10d's Python, DDP's reducer in C++, FSDP's
streams. A recording has the same collectives of each group, in the same order, of the same sizes.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from commtrace.analyze import Frames, load

HERE = Path(__file__).parent
DEADLINE_S = 240
TRANSFERS = {"send": "gloo:send", "recv": "gloo:recv"}  # a receive from any rank is longer
# gloo has no reduce-scatter: it reduces everything on all ranks and each keeps its shard.
CARRIED_OUT_AS = {"reduce_scatter": "all_reduce"}
DTYPES = {
    "Float": "float32", "Double": "float64", "BFloat16": "bfloat16", "Half": "float16",
    "Long": "int64", "Int": "int32", "Byte": "uint8", "Bool": "bool",
}  # fmt: skip

# A script, its arguments, and the number of its ranks.
PROGRAMS: dict[str, tuple[str, int]] = {
    "ddp": ("ddp_sampler", 2),
    "ddp_hooks": ("ddp_hooks", 2),
    "ddp_uneven": ("ddp_uneven", 2),
    "sync_batch_norm": ("sync_batch_norm", 2),
    "local_sgd": ("local_sgd", 4),
    "zero": ("zero", 2),
    "fsdp1": ("fsdp1 FULL_SHARD", 2),
    "fsdp1_grad_op": ("fsdp1 SHARD_GRAD_OP", 2),
    "fsdp1_hybrid": ("fsdp1 HYBRID_SHARD", 4),
    "fsdp2": ("fsdp2 2", 2),
    "fsdp2_hybrid": ("fsdp2 2 2", 4),
    "tensor_parallel": ("tensor_parallel", 4),
    "gpipe": ("pipeline ScheduleGPipe 1", 2),
    "1f1b": ("pipeline Schedule1F1B 1", 2),
    "interleaved_1f1b": ("pipeline ScheduleInterleaved1F1B 2", 2),
    "zero_bubble": ("pipeline ScheduleInterleavedZeroBubble 2", 2),
    "mixture_of_experts": ("mixture_of_experts", 2),
    "accelerate": ("accelerated", 2),
    "rings": ("rings", 4),
}

Collective = tuple[str, str, int]


def run(program: str, folder: Path) -> tuple[Frames, list[dict[str, Any]]]:
    """Run a script recorded, and return the run and the counts of each rank."""
    line, num_ranks = PROGRAMS[program]
    script, *args = line.split()
    path = folder / "run.json"
    command = [
        *(sys.executable, "-m", "commtrace_cli", "run", "--nproc", str(num_ranks), "-o", path),
        *(HERE / "witness.py", folder, HERE / "scripts" / f"{script}.py", *args),
    ]
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=DEADLINE_S,
        env={**os.environ, "TORCH_FR_BUFFER_SIZE": "20000", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    counted = [json.loads((folder / f"rank{n}.json").read_text()) for n in range(num_ranks)]
    return load(path), counted


def elements(shapes: Iterable[Iterable[int]]) -> int:
    """Total number of elements of the shapes."""
    return sum(math.prod(shape) for shape in shapes)


def recorded(calls: pd.DataFrame) -> Iterator[tuple[str, Collective]]:
    """Group and collective of each recorded call, as gloo carries it out."""
    for call in calls[~calls["kind"].isin(TRANSFERS)].sort_values("id").itertuples():
        kind = CARRIED_OUT_AS.get(str(call.kind), str(call.kind))
        most = max(
            elements(json.loads(shape) for shape in str(shapes).split(";") if shape)
            for shapes in (call.input_shapes, call.output_shapes)
        )
        yield str(call.group), (kind, str(call.dtype) if most else "", most)


def counted_by_gloo(
    entries: Iterable[dict[str, Any]], sizes: Mapping[str, int]
) -> Iterator[tuple[str, Collective]]:
    """Group and collective of each entry of the flight recorder, from the groups' sizes."""
    for entry in entries:
        (group, _), kind = entry["process_group"], entry["profiling_name"].removeprefix("gloo:")
        most = max(elements(entry["input_sizes"]), elements(entry["output_sizes"]))
        if kind == "all_gather":  # a coalesced one's output has its input's size here
            most = elements(entry["input_sizes"]) * sizes[group]
        dtypes = [DTYPES[each] for each in (*entry["input_dtypes"], *entry["output_dtypes"])]
        yield group, (kind, dtypes[0] if most else "", most)


def by_group(collectives: Iterable[tuple[str, Collective]]) -> dict[str, list[Collective]]:
    """Collectives of each group in their order."""
    groups: dict[str, list[Collective]] = {}
    for group, collective in collectives:
        groups.setdefault(group, []).append(collective)
    return groups


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_recording_has_what_gloo_carried_out(program: str, tmp_path: Path) -> None:
    frames, counted = run(program, tmp_path)
    sizes = frames.groups.set_index("name")["size"].to_dict()
    for rank, of_rank in enumerate(counted):
        calls = frames.comm[frames.comm["rank"] == rank]
        assert len(calls) > 0
        counted_there = counted_by_gloo(of_rank["collectives"], sizes)
        assert by_group(recorded(calls)) == by_group(counted_there)
        profiled = {
            kind: sum(n for name, n in of_rank["profiled"].items() if name.startswith(of_gloo))
            for kind, of_gloo in TRANSFERS.items()
        }
        assert {kind: sum(calls["kind"] == kind) for kind in TRANSFERS} == profiled


def test_every_script_is_run() -> None:
    used = {line.split()[0] for line, _ in PROGRAMS.values()}
    assert used == {path.stem for path in (HERE / "scripts").glob("*.py")}
