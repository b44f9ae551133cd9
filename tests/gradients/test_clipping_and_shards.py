"""Several clippings of a step, and parameters whose equal values do not make them replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import commtrace
from commtrace.analyze import Frames, load
from commtrace.analyze.gradients import gradients, wrong_reductions
from commtrace.tracefile import read_parts
from dtensor_core.testing import run_threads

WIDTH, NUM_STEPS = 8, 2


def reduced(model: nn.Module) -> None:
    """Reduce all gradients to their mean over ranks."""
    for each in model.parameters():
        dist.all_reduce(each.grad)
        each.grad /= dist.get_world_size()  # type: ignore[operator]


class Two(nn.Module):
    """Two layers, each with its own optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform [B, D]."""
        return self.small(x) + self.large(torch.tanh(x))


def of_two_optimizers(fault: bool, folder: str) -> None:
    torch.manual_seed(3)
    model = Two()
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in model.children()]
    numbers = torch.Generator().manual_seed(dist.get_rank())
    with commtrace.record(values="module") as recording:
        for _ in range(NUM_STEPS):
            x = torch.randn(6, WIDTH, generator=numbers)
            model(x).square().mean().backward()
            reduced(model)
            for optimizer, most in zip(optimizers, (0.01, 0.02), strict=True):
                torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], most)
            if fault:
                model.small.weight.grad *= 0.5  # type: ignore[operator]
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            recording.step()
    recording.save(Path(folder) / f"{dist.get_rank()}.json")


def run_of(train: Any, given: Any, folder: Path) -> Frames:
    run_threads(train, 2, given, str(folder))
    return load(read_parts(sorted(folder.glob("*.json"))))


@pytest.mark.parametrize("fault", [False, True])
def test_each_clipping_is_judged_by_its_own_norm(fault: bool, tmp_path: Path) -> None:
    run = run_of(of_two_optimizers, fault, tmp_path)
    table = gradients(run)
    assert set(table.loc[table["what"] == "gradient norm", "state"]) == {"right"}
    wrong = wrong_reductions(run)
    assert [(each.first["what"], each.first["name"]) for each in wrong[:1]] == (
        [("clipping", "small.weight")] if fault else []
    )


class Heads(nn.Module):
    """The heads of a rank, with a factor for each head that begins as 1."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4 + dist.get_rank())
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform [B, D]."""
        return self.query(x) * self.scale


def with_own_heads(is_constant: bool, folder: str) -> None:
    heads = Heads()
    if not is_constant:
        heads.scale = nn.Parameter(torch.linspace(0.5, 1, WIDTH))
    model = nn.Sequential(heads)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    numbers = torch.Generator().manual_seed(7)
    with commtrace.record(values="module") as recording:
        for _ in range(NUM_STEPS):
            out = model(torch.randn(6, WIDTH, generator=numbers)).sum()
            total = out.detach().clone()
            dist.all_reduce(total)
            (out + (total - out.detach())).square().backward()
            optimizer.step()
            optimizer.zero_grad()
            recording.step()
    recording.save(Path(folder) / f"{dist.get_rank()}.json")


@pytest.mark.parametrize("is_constant", [True, False])
def test_ones_beside_shards_are_no_replicas(is_constant: bool, tmp_path: Path) -> None:
    wrong = wrong_reductions(run_of(with_own_heads, is_constant, tmp_path))
    assert [each.names for each in wrong] == ([] if is_constant else [("0.scale",)])
