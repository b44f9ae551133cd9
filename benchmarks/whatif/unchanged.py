"""Replays without a change, beside the recordings: step time, and waits of each rank by kind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.profiled_trace import write_profile
from benchmarks.whatif.predicted import measured_ns
from commtrace.analyze import Frames, load
from commtrace.analyze.replay.build import work_graph
from commtrace.analyze.replay.graph import replayed
from commtrace.analyze.replay.outcome import step_lengths, step_time
from commtrace.analyze.replay.run_of import run_of
from commtrace.importers import import_trace

MOST_STEP_ERROR = 0.01
MOST_WAIT_ERROR = 0.03
LEAST_SHARE = 0.01
"""Part of a rank's waits from which waits of a kind count."""

_ROOT = Path(__file__).parents[2]
_SCRIPTS = "tests/training_scripts/scripts"
# Name, script with its arguments, and number of ranks.
PROGRAMS = (
    ("TP", "examples/train_tp.py", 2),
    ("SP", "examples/train_tp.py --sequence-parallel", 2),
    ("DDP", f"{_SCRIPTS}/ddp_sampler.py", 2),
    ("DDP with hooks", f"{_SCRIPTS}/ddp_hooks.py", 2),
    ("FSDP1", f"{_SCRIPTS}/fsdp1.py FULL_SHARD", 2),
    ("FSDP2", f"{_SCRIPTS}/fsdp2.py 2", 2),
    ("HSDP", f"{_SCRIPTS}/fsdp2.py 2 2", 4),
    ("ZeRO", f"{_SCRIPTS}/zero.py", 2),
    ("GPipe", f"{_SCRIPTS}/pipeline.py ScheduleGPipe 1", 2),
    ("1F1B", f"{_SCRIPTS}/pipeline.py Schedule1F1B 1", 2),
    ("zero bubble", f"{_SCRIPTS}/pipeline.py ScheduleInterleavedZeroBubble 2", 2),
    ("MoE", f"{_SCRIPTS}/mixture_of_experts.py", 2),
    ("rings", f"{_SCRIPTS}/rings.py", 4),
)
_PROFILED = "profiles of GPUs"
_NUM_PROFILES = 4
_BYTES_OF_PROFILE = 10_000_000


@dataclass(frozen=True, slots=True)
class Unchanged:
    """Relative errors of the replay of a run without a change.

    Attributes:
        name: Name of the program.
        num_ranks: Number of its ranks.
        num_calls: Number of its calls.
        step: Relative error of the step time; of a run without steps, of its time.
        wait: Largest error of the waits of a rank by kind, of those waits.
        worst: Rank and kind of that error.
        inferred: Part of the dependencies that the trace does not state.
    """

    name: str
    num_ranks: int
    num_calls: int
    step: float
    wait: float
    worst: str
    inferred: float

    @property
    def is_kept(self) -> bool:
        """True if both are within their bars."""
        return self.step <= MOST_STEP_ERROR and self.wait <= MOST_WAIT_ERROR


def record_programs(folder: Path) -> None:
    """Record the programs, with operators."""
    for name, line, num_ranks in PROGRAMS:
        path = folder / f"{name.replace(' ', '_')}.json"
        script, *args = line.split()
        command = [
            *(sys.executable, "-m", "commtrace_cli", "run", "--nproc", str(num_ranks), "--force"),
            *("--detail", "op", "-o", str(path), str(_ROOT / script), *args),
        ]
        subprocess.run(
            command, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True,
            capture_output=True,
        )  # fmt: skip


def write_profiles(folder: Path, num_bytes: int = _BYTES_OF_PROFILE) -> list[Path]:
    """Write traces of GPUs, each of at least `num_bytes`, as `torch.profiler` does."""
    paths = [folder / f"profile{rank}.json" for rank in range(_NUM_PROFILES)]
    for rank, path in enumerate(paths):
        write_profile(path, rank, len(paths), num_bytes)
    return paths


def replays(folder: Path, traces: Sequence[Path]) -> Iterator[Unchanged]:
    """Yield the errors of the programs that were recorded into a folder, and of imported runs.

    Args:
        folder: The folder.
        traces: Files of other tools; those of a folder are of one run.
    """
    for name, _, _ in PROGRAMS:
        yield errors_of(name, load(folder / f"{name.replace(' ', '_')}.json"))
    yield errors_of(_PROFILED, load(import_trace(write_profiles(folder))))
    for path in traces:
        files = sorted(each for each in path.iterdir()) if path.is_dir() else [path]
        yield errors_of(path.name, load(import_trace(files)))


def errors_of(name: str, run: Frames) -> Unchanged:
    """Return the errors of the replay of a run."""
    graph = work_graph(run)
    replay = replayed(graph)
    step = step_time(run, step_lengths(run, replay))
    if step.num_steps:
        recorded = measured_ns(run)
    else:
        at = replay.graph.points.at
        recorded = float(at.max() - at.min())
    again = run_of(run, replay, np.zeros(0, dtype="int64"), "")
    before, after = waits(run), waits(again)
    counts = before[before > LEAST_SHARE * before.groupby(level=0).transform("sum")]
    error = (after.reindex(counts.index).fillna(0) - counts).abs() / counts
    worst = "" if error.empty else "rank {} {}".format(*error.idxmax())  # type: ignore[misc] - a tuple
    return Unchanged(
        name,
        run.num_ranks,
        run.num_calls,
        abs(step.step_ns / recorded - 1),
        float(error.max() if len(error) else 0),
        worst,
        float(graph.links.is_inferred.mean()),
    )


def waits(run: Frames) -> pd.Series:
    """Return the blocked time of each rank by kind, in ns."""
    comm = run.comm
    blocked = comm["blocked_ns"].clip(lower=0)
    return blocked.groupby([comm["rank"], comm["kind"].astype(object)]).sum()
