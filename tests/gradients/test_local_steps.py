"""Ranks that step alone and average their parameters, and those whose gradients are not reduced."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import commtrace
from commtrace.analyze import Frames, load
from commtrace.analyze.gradients import gradients, wrong_reductions
from commtrace.tracefile import read_parts
from dtensor_core.testing import run_threads

WIDTH, PERIOD, NUM_STEPS = 8, 2, 4


def averaged(model: nn.Module, how: str) -> None:
    """Average the parameters: each alone, as a flat tensor, or only the first."""
    own = list(model.parameters())
    if how == "flat":
        flat = torch.cat([each.detach().flatten() for each in own])
        dist.all_reduce(flat)
        nn.utils.vector_to_parameters(flat / dist.get_world_size(), own)
        return
    for each in own[:1] if how == "one of them" else own:
        dist.all_reduce(each.data)
        each.data /= dist.get_world_size()


def train(how: str, reduces_first: bool, folder: str) -> None:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Tanh(), nn.Linear(2 * WIDTH, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    numbers = torch.Generator().manual_seed(dist.get_rank())
    with commtrace.record(values="module") as recording:
        for number in range(NUM_STEPS):
            x = torch.randn(6, WIDTH, generator=numbers)
            model(x).square().mean().backward()
            if reduces_first:
                dist.all_reduce(model[0].weight.grad)
            optimizer.step()
            optimizer.zero_grad()
            if number % PERIOD == PERIOD - 1:
                averaged(model, how)
            recording.step()
    recording.save(Path(folder) / f"{dist.get_rank()}.json")


def run_of(how: str, folder: Path, *, reduces_first: bool = False) -> Frames:
    run_threads(train, 2, how, reduces_first, str(folder))
    return load(read_parts(sorted(folder.glob("*.json"))))


@pytest.mark.parametrize("how", ["one by one", "flat"])
def test_ranks_that_average_their_parameters_step_alone_by_design(how: str, tmp_path: Path) -> None:
    run = run_of(how, tmp_path)
    assert not wrong_reductions(run)
    table = gradients(run)
    explanations = set(table.loc[table["what"] == "gradient", "explanation"])
    assert any("test_local_steps.py:" in each and "averages" in each for each in explanations)


@pytest.mark.parametrize(
    ("how", "reduces_first"), [("one of them", False), ("one by one", True)],
    ids=["a buffer is averaged", "one gradient is reduced"],
)  # fmt: skip
def test_gradients_that_are_not_reduced_are_a_fault_otherwise(
    how: str, reduces_first: bool, tmp_path: Path
) -> None:
    (found,) = wrong_reductions(run_of(how, tmp_path, reduces_first=reduces_first))[:1]
    assert found.first["state"] == "missing"
