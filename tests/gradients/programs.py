"""A data- and tensor-parallel step that reduces by hand, with a fault or none."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import commtrace
from commtrace.analyze import Frames
from commtrace.analyze.run.frame import frames_of
from commtrace.tracefile import read_parts
from dtensor_core.testing import run_threads

NUM_RANKS, WIDTH, NUM_STEPS = 4, 8, 2


class Model(nn.Module):
    """A layer, a norm and a head; experts and sequence-parallel parts have copies."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.expert = (
            nn.Linear(WIDTH, WIDTH),
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, WIDTH, bias=False),
        )
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform [B, D]."""
        x = self.norm(torch.tanh(self.layer(x)))
        return self.head(x + self.expert(x))


@dataclass
class Step:
    """A training step on a rank, in parts that faults replace.

    `dp` ranks have data of their own, and so have `tp` ranks, but of the same sequence. Each tp
    rank has an expert of its own.
    """

    model: Model
    mesh: DeviceMesh
    recording: commtrace.Recording

    def group(self, axis: str) -> Any:
        """Return the group of a mesh axis."""
        return self.mesh.get_group(axis)

    def backward(self, number: int) -> torch.Tensor:
        """Return the loss of this rank's data, whose gradients are computed."""
        torch.manual_seed(100 * number + dist.get_rank())
        loss = self.model(torch.randn(6, WIDTH)).square().mean()
        loss.backward()
        return loss.detach()

    def is_expert(self, name: str) -> bool:
        """Return whether a parameter belongs to the rank's own expert."""
        return name.startswith("expert")

    def reduce(self, name: str, gradient: torch.Tensor) -> None:
        """Reduce a gradient to the mean over all losses."""
        if not self.is_expert(name):
            dist.all_reduce(gradient, group=self.group("tp"))
        dist.all_reduce(gradient, group=self.group("dp"))
        gradient /= NUM_RANKS

    def report(self, loss: torch.Tensor) -> None:
        """Report the mean of all losses."""
        loss = loss.clone()
        dist.all_reduce(loss)
        self.recording.observe("loss", loss / NUM_RANKS)

    def norm(self) -> torch.Tensor:
        """Return the norm of all gradients."""
        own = self.square([name for name, _ in self.model.named_parameters()
                           if self.is_expert(name)])  # fmt: skip
        dist.all_reduce(own, group=self.group("tp"))
        others = [n for n, _ in self.model.named_parameters() if not self.is_expert(n)]
        return (own + self.square(others)).sqrt()

    def square(self, names: list[str]) -> torch.Tensor:
        """Return the sum of the squares of some gradients."""
        total = torch.zeros(())
        for name in names:
            gradient = self.model.get_parameter(name).grad
            assert gradient is not None
            total += gradient.square().sum()
        return total

    def clip(self) -> None:
        """Clip the gradients by their norm."""
        nn.utils.clip_grads_with_norm_(self.model.parameters(), 0.05, self.norm())


def recorded(step: type[Step] = Step) -> Frames:
    """Train on four thread ranks, with dp of 2 and tp of 2."""
    with tempfile.TemporaryDirectory() as folder:
        run_threads(partial(train, step), NUM_RANKS, folder)
        return frames_in(Path(folder))


def frames_in(folder: Path) -> Frames:
    """Return the run whose ranks were recorded into a folder."""
    return frames_of(read_parts(sorted(folder.glob("*.json"))))


def train(kind: type[Step], folder: str) -> None:
    """Train on this rank, and record it into a folder."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = Model()
    torch.manual_seed(1 + mesh.get_local_rank("tp"))
    model.expert.reset_parameters()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with commtrace.record(values="module") as recording:
        step = kind(model, mesh, recording)
        for number in range(NUM_STEPS):
            loss = step.backward(number)
            for name, parameter in model.named_parameters():
                assert parameter.grad is not None
                step.reduce(name, parameter.grad)
            step.clip()
            step.report(loss)
            optimizer.step()
            optimizer.zero_grad()
            recording.step()
    recording.save(Path(folder) / f"rank{dist.get_rank()}.json")


Change = Callable[..., Any]


def with_(**methods: Change) -> type[Step]:
    """Return a step with some methods replaced."""
    return type("Faulty", (Step,), methods)
