"""Recordings of training scripts unaware of commtrace, compared with torch's C++ counters.

Each script of `scripts` runs under `commtrace run`, in turn on the same ranks. gloo's
flight recorder on each rank holds what the backend was asked for, by whichever caller: c10d's
Python, DDP's reducer in C++, FSDP's streams. A recording has the same collectives of each group, in
the same order, of the same sizes.
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
from tests.commtrace.analyze.alarms import alarms
from tests.preloaded import forked_interpreters

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
    "ddp": ("ddp_sampler.py", 2),
    "ddp_hooks": ("ddp_hooks.py", 2),
    "ddp_uneven": ("ddp_uneven.py", 2),
    "sync_batch_norm": ("sync_batch_norm.py", 2),
    "local_sgd": ("local_sgd.py", 4),
    "zero": ("zero.py", 2),
    "fsdp1": ("fsdp1.py FULL_SHARD", 2),
    "fsdp1_grad_op": ("fsdp1.py SHARD_GRAD_OP", 2),
    "fsdp1_hybrid": ("fsdp1.py HYBRID_SHARD", 4),
    "fsdp2": ("fsdp2.py 2", 2),
    "fsdp2_hybrid": ("fsdp2.py 2 2", 4),
    "tensor_parallel": ("tensor_parallel.py", 4),
    "gpipe": ("pipeline.py ScheduleGPipe 1", 2),
    "1f1b": ("pipeline.py Schedule1F1B 1", 2),
    "interleaved_1f1b": ("pipeline.py ScheduleInterleaved1F1B 2", 2),
    "zero_bubble": ("pipeline.py ScheduleInterleavedZeroBubble 2", 2),
    "mixture_of_experts": ("mixture_of_experts.py", 2),
    "accelerate": ("accelerated.py", 2),
    "rings": ("rings.py", 4),
}

NUM_RANKS = sorted({num_ranks for _, num_ranks in PROGRAMS.values()})

Collective = tuple[str, str, int]
Recording = tuple[Frames, list[dict[str, Any]]]


def run_on(num_ranks: int, folder: Path) -> Recording:
    """Run the programs of so many ranks, and return the recording and the counts of each rank."""
    lines = {name: line for name, (line, ranks) in PROGRAMS.items() if ranks == num_ranks}
    path = folder / "run.json"
    command = [
        *(sys.executable, "-m", "commtrace_cli", "run", "--nproc", str(num_ranks), "-o", path),
        *(HERE / "witness.py", folder, *(f"{HERE}/scripts/{line}" for line in lines.values())),
    ]
    with forked_interpreters():
        done = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, timeout=DEADLINE_S,
            env={**os.environ, "TORCH_FR_BUFFER_SIZE": "20000", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    counted = [json.loads((folder / f"rank{n}.json").read_text()) for n in range(num_ranks)]
    return load(path), [dict(zip(lines, of_rank, strict=True)) for of_rank in counted]


def elements(shapes: Iterable[Iterable[int]]) -> int:
    """Total number of elements of the shapes."""
    return sum(math.prod(shape) for shape in shapes)


def given_name(group: str) -> str:
    """Torch's name of a group; those that another script used too have a number in a recording."""
    return group.partition("#")[0]


def recorded(calls: pd.DataFrame) -> Iterator[tuple[str, Collective]]:
    """Group and collective of each recorded call, as gloo carries it out."""
    for call in calls[~calls["kind"].isin(TRANSFERS)].sort_values("id").itertuples():
        kind = CARRIED_OUT_AS.get(str(call.kind), str(call.kind))
        most = max(
            elements(json.loads(shape) for shape in str(shapes).split(";") if shape)
            for shapes in (call.input_shapes, call.output_shapes)
        )
        yield given_name(str(call.group)), (kind, str(call.dtype) if most else "", most)


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


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Recording]:
    return {number: run_on(number, tmp_path_factory.mktemp("recording")) for number in NUM_RANKS}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_recording_has_what_gloo_carried_out(
    program: str, recordings: dict[int, Recording]
) -> None:
    frames, counted = recordings[PROGRAMS[program][1]]
    for rank, of_rank in enumerate(counted):
        counted_there = of_rank[program]
        begin_ns, end_ns = counted_there["time_ns"]
        calls = frames.comm[
            (frames.comm["rank"] == rank) & frames.comm["issue_ns"].between(begin_ns, end_ns)
        ]
        assert len(calls) > 0
        groups = frames.groups[frames.groups["name"].isin(calls["group"])]
        sizes = dict(zip(map(given_name, groups["name"]), groups["size"], strict=True))
        by_gloo = by_group(counted_by_gloo(counted_there["collectives"], sizes))
        assert by_group(recorded(calls)) == by_gloo
        profiled = {
            kind: sum(n for name, n in counted_there["profiled"].items() if name.startswith(prefix))
            for kind, prefix in TRANSFERS.items()
        }
        assert {kind: sum(calls["kind"] == kind) for kind in TRANSFERS} == profiled


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
def test_every_recorded_call_is_compared(num_ranks: int, recordings: dict[int, Recording]) -> None:
    frames, counted = recordings[num_ranks]
    for rank, of_rank in enumerate(counted):
        times = frames.comm.loc[frames.comm["rank"] == rank, "issue_ns"]
        assert len(times) == sum(
            times.between(*of_program["time_ns"]).sum() for of_program in of_rank.values()
        )


@pytest.mark.parametrize("num_ranks", NUM_RANKS)
def test_no_alarm_where_scripts_run_as_they_should(
    num_ranks: int, recordings: dict[int, Recording]
) -> None:
    frames, _ = recordings[num_ranks]
    assert alarms(frames) == []


def test_every_script_is_run() -> None:
    used = {line.split()[0] for line, _ in PROGRAMS.values()}
    assert used == {path.name for path in (HERE / "scripts").glob("*.py")}
