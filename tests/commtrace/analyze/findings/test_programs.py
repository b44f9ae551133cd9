"""What the rules find in programs as they are written: what is there, and no nonsense."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

import commtrace
from commtrace.analyze import CATALOG, load
from commtrace.analyze.findings.late import LATE, STALL, UNEVEN
from dtensor_core.testing import run_processes

NUM_STEPS = 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).relu())


def blocks() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), nn.Linear(32, 4))


def trained(model: nn.Module, path: str) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    with commtrace.record(path) as recording:
        for _ in range(NUM_STEPS):
            model(torch.randn(8, 32)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            recording.step()


def data_parallel(path: str) -> None:
    trained(DistributedDataParallel(blocks(), find_unused_parameters=True), path)


def accumulating(path: str) -> None:
    model = DistributedDataParallel(blocks())
    with commtrace.record(path) as recording:
        for _ in range(NUM_STEPS):
            for _ in range(2):
                model(torch.randn(8, 32)).pow(2).mean().backward()
            recording.step()


def fully_sharded(path: str, *, keeps: bool = False) -> None:
    model, mesh = blocks(), init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    for block in (model[0], model[1], model):
        fully_shard(block, mesh=mesh, reshard_after_forward=not keeps)
    trained(model, path)


def fully_sharded_and_kept(path: str) -> None:
    fully_sharded(path, keeps=True)


def pipeline(path: str) -> None:
    model, rank = blocks(), torch.distributed.get_rank()
    part = model[:1] if rank == 0 else model[1:]
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 4, loss_fn=nn.functional.mse_loss)
    with commtrace.record(path) as recording:
        for _ in range(NUM_STEPS):
            schedule.step(*[torch.randn(8, 32)] * (rank == 0), target=torch.zeros(8, 4))
            recording.step()


def one_weight_for_all_steps(path: str) -> None:
    weight, mesh = torch.ones(8, 4), torch.distributed.group.WORLD
    with commtrace.record(path) as recording:
        for _ in range(NUM_STEPS):
            whole = [torch.empty_like(weight) for _ in range(2)]
            torch.distributed.all_gather(whole, weight, group=mesh)
            recording.step()


@pytest.mark.parametrize(
    ("program", "wanted"),
    [
        (data_parallel, {}),
        (accumulating, {"reduced_again": 1}),
        (fully_sharded, {"gathered_again": 3}),  # a unit each
        (fully_sharded_and_kept, {}),
        (pipeline, {}),
        (one_weight_for_all_steps, {"gathered_again": 1}),
    ],
)
def test_a_program_has_the_findings_that_it_should(
    program: object, wanted: dict[str, int], tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    run_processes(program, 2, str(path), timeout_s=120)
    frames = load(path)
    found = Counter(CATALOG["findings"].function(frames)["rule"])
    for rule in (LATE, STALL, UNEVEN):  # as the machine has it
        found.pop(rule.name, None)
    assert found == wanted
    assert CATALOG["consistency"].function(frames).empty
