"""Gradients that differ because forward passes have parted are no wrong reductions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import commtrace
from commtrace.analyze import load
from commtrace.analyze.gradients import gradients, wrong_reductions
from commtrace.tracefile import read_parts
from dtensor_core.testing import run_threads

WIDTH, NUM_STEPS = 8, 2


class _Copied(torch.autograd.Function):
    """Input of a column-parallel layer: its gradient is summed over ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, is_reduced: bool) -> torch.Tensor:
        ctx.is_reduced = is_reduced
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        gradient = grads[0].clone()
        if ctx.is_reduced:
            dist.all_reduce(gradient)
        return gradient, None


class _Reduced(torch.autograd.Function):
    """Output of a row-parallel layer: it is summed over ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0]


class Model(nn.Module):
    """Two tensor-parallel layers between norms, which all ranks hold."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.norm, self.end = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WIDTH)
        torch.manual_seed(4 + dist.get_rank())
        self.up, self.down = (
            nn.Linear(WIDTH, WIDTH, bias=False),
            nn.Linear(WIDTH, WIDTH, bias=False),
        )
        self.fault = fault
        self.generator = torch.Generator().manual_seed(dist.get_rank() if fault == "mask" else 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform [B, D]."""
        x = self.norm(x)
        parts = self.down(torch.tanh(self.up(_Copied.apply(x, self.fault != "backward"))))
        x = x + (parts if self.fault == "forward" else _Reduced.apply(parts))
        x = x * (torch.rand(x.shape, generator=self.generator) > 0.2)
        return self.head(self.end(x))


def train(fault: str, folder: str) -> None:
    model = Model(fault)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    numbers = torch.Generator().manual_seed(7)
    with commtrace.record(values="module") as recording:
        for _ in range(NUM_STEPS):
            model(torch.randn(6, WIDTH, generator=numbers)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            recording.step()
    recording.save(Path(folder) / f"{dist.get_rank()}.json")


@pytest.mark.parametrize(
    ("fault", "is_found"), [("", False), ("mask", False), ("forward", False), ("backward", True)]
)
def test_a_fault_of_the_forward_pass_is_no_wrong_reduction(
    fault: str, is_found: bool, tmp_path: Path
) -> None:
    run_threads(train, 2, fault, str(tmp_path))
    run = load(read_parts(sorted(tmp_path.glob("*.json"))))
    assert bool(wrong_reductions(run)) == is_found
    table = gradients(run)
    parted = table["explanation"].str.contains("their forward passes have parted")
    assert parted.any() == (fault in ("mask", "forward"))
