"""A pipeline's first run of its stages on memory without numbers is not observed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining

import commtrace
from commtrace.analyze import load
from commtrace.tracefile import read_parts
from dtensor_core.testing import run_processes

NUM_CHUNKS = 4


def train(level: str, folder: str) -> None:
    rank = dist.get_rank()
    torch.manual_seed(rank)
    stage = pipelining.PipelineStage(
        nn.Sequential(nn.Linear(4, 4), nn.Tanh()), rank, 2, torch.device("cpu")
    )
    schedule = pipelining.ScheduleGPipe(stage, NUM_CHUNKS, loss_fn=nn.functional.mse_loss)
    numbers = torch.ones(8, 4)
    with commtrace.record(values=level) as recording:
        for _ in range(2):
            schedule.step(*([] if rank else [numbers]), **({"target": numbers} if rank else {}))
            recording.step()
    recording.save(Path(folder) / f"{rank}.json")


@pytest.mark.parametrize("level", ["module", "op"])
def test_each_step_has_as_many_calls_as_micro_batches(level: str, tmp_path: Path) -> None:
    run_processes(train, 2, level, str(tmp_path), timeout_s=100)
    found = load(read_parts(sorted(tmp_path.glob("*.json")))).fingerprints
    for role, num_ranks in (("output", 2), ("output_gradient", 2), ("loss", 1)):
        rows = found[found["role"].astype(str) == role]
        rows = rows[~rows["module"].astype(str).str.contains(".", regex=False)]
        counted = Counter(zip(rows["rank"], rows["step"], rows["module"].astype(str), strict=True))
        assert {rank for rank, *_ in counted} >= set(range(2 - num_ranks, 2)), role
        assert set(counted.values()) == {NUM_CHUNKS}, (role, counted)
    parameters = found[found["role"].astype(str) == "parameter"]
    assert len(parameters) == 4
