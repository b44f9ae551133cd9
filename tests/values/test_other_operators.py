"""Runs that compute the same numbers by other operators, in another order or more often, agree."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

import commtrace
from commtrace.analyze import Frames
from commtrace.analyze.values import compare
from tests.values.programs import run_of

WIDTH, NUM_EXPERTS, BATCH = 6, 4, 8


class Experts(nn.Module):
    """The sum of experts, whose matrices are multiplied in turn."""

    def __init__(self, way: str, fault: str) -> None:
        super().__init__()
        self.matrices = nn.Parameter(torch.randn(NUM_EXPERTS, WIDTH, WIDTH))
        self.way, self.fault = way, fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform [B, D]."""
        numbers: Any = range(NUM_EXPERTS)
        if self.way == "in reverse":
            numbers = reversed(numbers)
        if self.way == "on ranks":
            numbers = numbers[2 * dist.get_rank() : 2 * dist.get_rank() + 2]
        made: dict[int, torch.Tensor] = {}
        for number in numbers:
            product = x @ self.matrices[number]
            made[number] = product.relu() * (2 if self.fault == f"expert {number}" else 1)
        total = torch.stack([made[number] for number in sorted(made)]).sum(0)
        if self.way == "on ranks":
            total = _Sum.apply(total)  # type: ignore[assignment]
        return total


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total + 0

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


class Model(nn.Module):
    """A linear layer, experts and a head."""

    def __init__(self, way: str, fault: str) -> None:
        super().__init__()
        self.first, self.experts = nn.Linear(WIDTH, WIDTH), Experts(way, fault)
        self.head = nn.Linear(WIDTH, WIDTH)
        self.way, self.fault = way, fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform [B, D]."""
        if self.way == "in chunks":
            # The weight is multiplied with parts of the batch.
            parts = [part @ self.first.weight.T for part in x.chunk(2)]
            x = torch.cat(parts) + self.first.bias
        else:
            x = x @ self.first.weight.T + self.first.bias
        if self.way.startswith("recomputed"):
            x = checkpoint(self.experts, x, use_reentrant=self.way.endswith("reentrant"))
        else:
            x = self.experts(x)
        return self.head(x) * (1.5 if self.fault == "head" else 1)


def train(way: str, fault: str, path: Path) -> None:
    """Train the model for two steps."""
    torch.manual_seed(0)
    model = Model(way, fault)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(1)
    num_parts = 2 if way == "accumulated" else 1
    with commtrace.record(values="op") as recording:
        for _ in range(2):
            x = torch.randn(BATCH, WIDTH, generator=generator)
            for part in x.chunk(num_parts):
                loss = model(part).square().mean()
                recording.observe("loss", loss)
                (loss / num_parts).backward()
            if way == "on ranks":
                gradient: Any = model.first.weight.grad
                for each in (gradient, model.first.bias.grad, model.experts.matrices.grad):
                    dist.all_reduce(each)
            optimizer.step()
            optimizer.zero_grad()
            recording.step()
            with torch.no_grad():
                if way == "evaluated":
                    model(x)
    rank = dist.get_rank() if way == "on ranks" else 0
    recording.save(path / f"rank{rank}.json")


@cache
def recorded(way: str = "", fault: str = "") -> Frames:
    return run_of(partial(train, way, fault), 2 if way == "on ranks" else 0)


WAYS = {
    "": 100, "in chunks": 80, "in reverse": 100, "recomputed": 90, "recomputed, reentrant": 80,
    "accumulated": 15, "on ranks": 60, "evaluated": 90,
}  # fmt: skip
"""Ways to compute, with the least number of pairs in percent of the tensors of the usual run."""


@pytest.mark.parametrize("way", WAYS)
def test_another_way_to_compute_agrees(way: str) -> None:
    found = compare(recorded(), recorded(way))
    assert found.agrees, found.fault
    assert found.num_wrong == found.num_doubtful
    assert found.num_paired >= WAYS[way] / 100 * found.num_left
    assert set(found.pairs["step"]) == {0, 1}


@pytest.mark.parametrize("way", sorted({*WAYS} - {"accumulated"}))
def test_a_fault_in_another_way_is_found_at_its_operator(way: str) -> None:
    found = compare(recorded(), recorded(way, "head")).fault
    assert found is not None
    assert (found.right["op"], found.right["module"]) == ("aten.mul.Tensor", "")
    assert found.relation.factor == pytest.approx(1.5)


@pytest.mark.parametrize("way", ["", "in reverse", "recomputed"])
@pytest.mark.parametrize("number", range(NUM_EXPERTS))
def test_a_fault_of_one_of_alike_operators_is_found(way: str, number: int) -> None:
    found = compare(recorded(), recorded(way, f"expert {number}")).fault
    assert found is not None
    assert (found.right["op"], found.right["module"]) == ("aten.mul.Tensor", "experts")
    assert found.relation.factor == pytest.approx(2)
