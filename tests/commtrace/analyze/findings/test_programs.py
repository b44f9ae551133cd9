"""Findings in realistic programs: true findings are reported, and no false ones."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

import commtrace
from commtrace.analyze import CATALOG, load
from commtrace.analyze.findings.late_in_turn import LOAD_IMBALANCE
from commtrace.analyze.findings.overlap_lost import OVERLAP
from commtrace.analyze.findings.shared_cores import SHARED_CORES
from commtrace.analyze.findings.stragglers import STALL, STRAGGLER
from dtensor_core.testing import run_processes
from tests.commtrace.analyze.findings.savings_law import broken_laws

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
    trained(DistributedDataParallel(blocks()), path)


def searching_for_unused(path: str) -> None:
    trained(DistributedDataParallel(blocks(), find_unused_parameters=True), path)


def leaving_some_unused(path: str) -> None:
    model = blocks()
    model.register_module("extra", nn.Identity())
    model[0].register_parameter("spare", nn.Parameter(torch.ones(3)))
    trained(DistributedDataParallel(model, find_unused_parameters=True), path)


def accumulating(path: str) -> None:
    model = DistributedDataParallel(blocks())
    with commtrace.record(path) as recording:
        for _ in range(NUM_STEPS):
            for _ in range(2):
                model(torch.randn(8, 32)).pow(2).mean().backward()
            recording.step()


def unmarked(path: str, *, passes: int = 1, by_hand: bool = False) -> None:
    """A program without marks of steps, like most programs."""
    model = DistributedDataParallel(blocks())
    optimizer = torch.optim.AdamW(model.parameters())
    with commtrace.record(path):
        for _ in range(2 * NUM_STEPS):
            for _ in range(passes):
                model(torch.randn(8, 32)).pow(2).mean().backward()
            for each in model.parameters() if by_hand else ():
                torch.distributed.all_reduce(each.grad)
            optimizer.step()
            optimizer.zero_grad()


def unmarked_and_accumulating(path: str) -> None:
    unmarked(path, passes=3)


def unmarked_and_reducing_by_hand(path: str) -> None:
    unmarked(path, by_hand=True)


def flat_sharded(path: str, *, strategy: str = "SHARD_GRAD_OP") -> None:
    model = FullyShardedDataParallel(
        blocks(),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        device_id=torch.device("cpu"),
        sharding_strategy=ShardingStrategy[strategy],
    )
    trained(model, path)


def flat_sharded_twice(path: str) -> None:
    flat_sharded(path, strategy="FULL_SHARD")


def compressed(path: str) -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = DistributedDataParallel(blocks())
            state = PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.1)
            self.inner.register_comm_hook(state, powerSGD_hook)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    trained(Around(), path)


def stepping_by_hand(path: str) -> None:
    """A shard that is gathered, and updated in a way that no version counter notices."""
    shard = nn.Parameter(torch.randn(8, 4))
    with commtrace.record(path) as recording:
        for _ in range(NUM_STEPS):
            gathered = torch.empty(16, 4)
            with warnings.catch_warnings(action="ignore", category=FutureWarning):
                torch.distributed.all_gather_into_tensor(gathered, shard.data)
            shard.data -= 0.1 * gathered[:8]
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
            gathered = [torch.empty_like(weight) for _ in range(2)]
            torch.distributed.all_gather(gathered, weight, group=mesh)
            recording.step()


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (data_parallel, {}),
        (searching_for_unused, {"unused_parameter_flags": 1}),
        (leaving_some_unused, {}),
        (accumulating, {"repeated_reduction": 1}),
        (unmarked, {}),
        (unmarked_and_accumulating, {"repeated_reduction": 1}),
        (unmarked_and_reducing_by_hand, {"repeated_reduction": 1}),
        (flat_sharded, {}),
        (flat_sharded_twice, {"repeated_all_gather": 2}),  # all units except the root
        (compressed, {}),
        (stepping_by_hand, {}),
        (fully_sharded, {"repeated_all_gather": 3}),  # one per unit
        (fully_sharded_and_kept, {}),
        (pipeline, {"pipeline_bubbles": 1}),
        (one_weight_for_all_steps, {"repeated_all_gather": 1}),
    ],
)
def test_a_program_has_the_findings_that_it_should(
    program: object, expected: dict[str, int], tmp_path: Path
) -> None:
    path = tmp_path / "run.json"
    run_processes(program, 2, str(path), timeout_s=120)
    frames = load(path)
    found = Counter(CATALOG["findings"].function(frames)["rule"])
    for rule in (
        STRAGGLER,
        STALL,
        LOAD_IMBALANCE,
        SHARED_CORES,
        OVERLAP,
    ):  # these depend on the machine
        found.pop(rule.name, None)
    assert found == expected
    assert CATALOG["consistency"].function(frames).empty
    assert broken_laws(frames) == []


def stopped_once(path: str) -> None:
    """An unmarked script in which one rank saves something, once."""
    model = DistributedDataParallel(blocks())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with commtrace.record(path, detail="collective"):
        for number in range(20):
            model(torch.randn(8, 32)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if number == 12 and torch.distributed.get_rank() == 1:
                time.sleep(3.0)


def test_a_rank_that_once_stopped_the_others_is_found_in_an_unmarked_script(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.json"
    run_processes(stopped_once, 2, str(path), timeout_s=120)
    frames = load(path)
    assert frames.run["steps_from"] == "optimizer"
    assert broken_laws(frames) == []
    table = CATALOG["findings"].function(frames)
    (reported,) = table[table["rule"] == STALL.name]["title"]
    assert reported.startswith("Rank 1 stalled the other ranks")
    assert "in step 13" in reported
