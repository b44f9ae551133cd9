"""An embedding tied across pipeline stages is reduced over both, once."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import commtrace
from commtrace.analyze import CATALOG, Frames
from commtrace.analyze.gradients import gradients
from commtrace.analyze.run.frame import frames_of
from commtrace.tracefile import read_parts
from dtensor_core.testing import run_threads

NUM_RANKS, NUM_WORDS, WIDTH, NUM_STEPS, TIED = 4, 12, 6, 2, "embedding.weight"


class First(nn.Module):
    """The first stage."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layer = nn.Embedding(NUM_WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return hidden states, [B, D]."""
        return self.layer(self.embedding(words)).tanh()


class Last(nn.Module):
    """The last stage, whose head is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(NUM_WORDS, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits, [B, V]."""
        return self.norm(hidden) @ self.embedding.weight.T


Reduce = Callable[[DeviceMesh, str, torch.Tensor], None]


def _right(mesh: DeviceMesh, name: str, gradient: torch.Tensor) -> None:
    if name == TIED:
        dist.all_reduce(gradient, group=mesh.get_group("pp"))
    dist.all_reduce(gradient, group=mesh.get_group("dp"))
    gradient /= mesh["dp"].size()


def _without(axis: str) -> Reduce:
    def reduce(mesh: DeviceMesh, name: str, gradient: torch.Tensor) -> None:
        if name != TIED:
            return _right(mesh, name, gradient)
        (other,) = {"dp", "pp"} - {axis}
        dist.all_reduce(gradient, group=mesh.get_group(other))
        gradient /= mesh["dp"].size()
        return None

    return reduce


def _then(change: Reduce) -> Reduce:
    def reduce(mesh: DeviceMesh, name: str, gradient: torch.Tensor) -> None:
        _right(mesh, name, gradient)
        if name == TIED:
            change(mesh, name, gradient)

    return reduce


def _over_stages(mesh: DeviceMesh, _: str, gradient: torch.Tensor) -> None:
    dist.all_reduce(gradient, group=mesh.get_group("pp"))


def _divided(mesh: DeviceMesh, _: str, gradient: torch.Tensor) -> None:
    gradient /= mesh["pp"].size()


def _train(reduce: Reduce, folder: str) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    replica, stage = mesh.get_local_rank("dp"), mesh.get_local_rank("pp")
    torch.manual_seed(0)
    first, last = First(), Last()
    last.embedding.load_state_dict(first.embedding.state_dict())
    model: Any = (first, last)[stage]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with commtrace.record(values="module") as recording:
        for step in range(NUM_STEPS):
            torch.manual_seed(10 * step + replica)
            words, targets = torch.randint(NUM_WORDS, (2, 8))
            _backward(model, stage, words, targets)
            for name, parameter in model.named_parameters():
                reduce(mesh, name, parameter.grad)
            optimizer.step()
            optimizer.zero_grad()
            recording.step()
    recording.save(Path(folder) / f"rank{dist.get_rank()}.json")


def _backward(model: Any, stage: int, words: torch.Tensor, targets: torch.Tensor) -> None:
    """Compute the gradients of a stage; neighbours in rank are stages of a pipeline."""
    rank = dist.get_rank()
    if stage == 0:
        hidden = model(words)
        dist.send(hidden.detach(), rank + 1)
        gradient = torch.empty_like(hidden)
        dist.recv(gradient, rank + 1)
        hidden.backward(gradient)
        return
    hidden = torch.empty(len(words), WIDTH)
    dist.recv(hidden, rank - 1)
    hidden.requires_grad_()
    nn.functional.cross_entropy(model(hidden), targets).backward()
    assert hidden.grad is not None
    dist.send(hidden.grad, rank - 1)


def _recorded(reduce: Reduce) -> Frames:
    with tempfile.TemporaryDirectory() as folder:
        run_threads(partial(_train, reduce), NUM_RANKS, folder)
        return frames_of(read_parts(sorted(Path(folder).glob("*.json"))))


def test_a_tied_embedding_that_both_stages_reduce_is_right() -> None:
    run = _recorded(_right)
    table = gradients(run)
    assert set(table["state"]) == {"right"}
    tied = table[table["name"] == TIED]
    assert set(tied["num_contributions"]) == {NUM_RANKS}
    assert set(table["num_losses"]) == {2}
    assert not CATALOG["consistency"].function(run)["is_fault"].any()


@pytest.mark.parametrize(
    ("reduce", "state", "factor", "words"),
    [
        (_without("pp"), "missing", math.nan, "reduced over dp ("),
        (_without("dp"), "missing", math.nan, "not over dp"),
        (_then(_over_stages), "scaled", 2.0, "2 is the size of"),
        (_then(_divided), "scaled", 0.5, "1/2 of"),
    ],
    ids=["not over stages", "not over data", "twice over stages", "divided by the stages"],
)
def test_a_wrong_reduction_of_a_tied_embedding_is_found(
    reduce: Reduce, state: str, factor: float, words: str
) -> None:
    table = gradients(_recorded(reduce))
    found = table[table["is_fault"]]
    assert set(found["name"]) == {TIED}
    assert set(found["state"]) == {state}
    assert set(found["step"]) == set(range(NUM_STEPS))
    assert found["explanation"].str.contains(words, regex=False).all()
    if not math.isnan(factor):
        ratio = (found["scale"] / found["expected_scale"]).tolist()
        assert ratio == pytest.approx([factor] * len(found), rel=1e-3)
