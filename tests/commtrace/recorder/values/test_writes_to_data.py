"""Writes through `.data`, which count as no version of a tensor, are seen."""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import commtrace
from commtrace.analyze.run.frame import frames_of
from commtrace.analyze.values import replicas
from commtrace.tracefile import read_parts
from dtensor_core import Replicate, init_device_mesh
from dtensor_core.testing import run_threads

WIDTH, NUM_STEPS = 4, 3


class Inner(nn.Module):
    """Returns ones."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a new tensor."""
        return torch.ones_like(x)


class Doubling(nn.Module):
    """Doubles what its layer returns, and its buffer, through `.data`."""

    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.register_buffer("total", torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tensor of the layer."""
        y = self.inner(x)
        y.data *= 2
        self.total.data.mul_(2)
        return y


def norms(recording: commtrace.Recording, role: str) -> list[float]:
    """Return the norms of a role, over the norm of a vector of ones, in the order of time."""
    table = recording.trace().tables["fingerprints"]
    return [
        norm / math.sqrt(WIDTH)
        for norm, own in zip(table["norm"], table["role"], strict=True)
        if own == role
    ]


@pytest.mark.parametrize("detail", ["op", "collective"])
@pytest.mark.parametrize("values", ["module", "op"])
def test_outputs_and_buffers_have_the_numbers_that_were_written(detail: str, values: str) -> None:
    model = Doubling()
    with commtrace.record(values=values, detail=detail) as recording:
        x = model(torch.zeros(WIDTH))
        recording.observe("x", x)
        x.data.copy_(torch.full((WIDTH,), 3.0))
        recording.observe("x", x)
        x.data = torch.full((WIDTH,), 5.0)
        recording.observe("x", x)
    assert norms(recording, "output") == pytest.approx([1, 2])
    assert norms(recording, "buffer") == pytest.approx([1, 2])
    assert norms(recording, "named") == pytest.approx([2, 3, 5])


@pytest.mark.parametrize("detail", ["op", "collective"])
def test_gradients_and_parameters_have_the_numbers_that_were_written(detail: str) -> None:
    model = nn.Linear(1, WIDTH, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with commtrace.record(values="module", detail=detail) as recording:
        model.weight.data.copy_(torch.full((WIDTH, 1), 8.0))
        model(torch.ones(1, 1)).sum().backward()
        gradient: Any = model.weight.grad
        gradient.data -= 4
        model.weight.data *= 0
        optimizer.step()
    assert norms(recording, "parameter") == pytest.approx([8])
    assert norms(recording, "local_gradient") == pytest.approx([1])
    assert norms(recording, "gradient") == pytest.approx([3])
    assert norms(recording, "updated") == pytest.approx([3])


def _train(folder: str, detail: str, drifting: int) -> None:
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with commtrace.record(values="module", detail=detail) as recording:
        recording.declare(model.weight, init_device_mesh("cpu", (2,)), [Replicate()])
        for step in range(NUM_STEPS):
            if step == 1 and dist.get_rank() == drifting:
                model.weight.data += 1e-3
            model(torch.ones(2, WIDTH)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            recording.step()
    recording.save(Path(folder) / f"rank{dist.get_rank()}.json")


@pytest.mark.parametrize("detail", ["op", "collective"])
@pytest.mark.parametrize("drifting", [1, -1])
def test_a_replica_that_drifts_through_data_is_found(detail: str, drifting: int) -> None:
    with TemporaryDirectory() as folder:
        run_threads(_train, 2, folder, detail, drifting)
        found = replicas(frames_of(read_parts(sorted(Path(folder).glob("*.json")))))
    if drifting < 0:
        assert found.empty
        return
    first = found.iloc[0]
    assert (first["step"], first["role"], first["name"]) == (1, "updated", "weight")
    assert first["ranks"] == "1"
