"""Reductions of libraries, on gloo processes: no false alarm, and theirs are told by the factor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import commtrace
from commtrace.analyze import CATALOG, Frames
from commtrace.analyze.gradients import gradients
from commtrace.analyze.run.frame import frames_of
from commtrace.tracefile import read_parts
from dtensor_core.testing import run_processes

NUM_RANKS, WIDTH = 4, 8
KINDS = {
    # name: (losses, factor)
    "ddp": (4, 0.25),
    "fsdp": (4, 0.25),
    "fsdp in bfloat16": (4, 0.25),
    "hsdp": (4, 0.25),
    "fsdp of tp": (2, 0.5),
    "scaled loss": (4, 0.25),
    "ddp, and reduced by hand": (4, 1.0),
    "hsdp summed over replicas": (4, 0.5),
    "ddp, and clipped by hand": (4, 0.25),
}


def _parallel(kind: str, model: Any) -> Any:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    if kind.startswith("ddp") or kind == "scaled loss":
        return nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp of tp":
        styles = {
            "0": ColwiseParallel(output_layouts=Replicate()),
            "3": RowwiseParallel(input_layouts=Replicate()),
        }
        parallelize_module(model, mesh["inner"], styles)
        return fully_shard(model, mesh=mesh["outer"])
    if kind.startswith("hsdp"):
        return fully_shard(model, mesh=mesh)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if kind.endswith("bfloat16") else None)
    fully_shard(model[0], mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def _train(folder: str) -> None:
    for kind in KINDS:
        torch.manual_seed(0)
        layers = nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        model = _parallel(kind, nn.Sequential(*layers))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seed = dist.get_rank() // (2 if kind == "fsdp of tp" else 1)
        with commtrace.record(values="module") as recording:
            for step in range(2):
                _step(kind, model, recording, 100 * step + seed)
                optimizer.step()
                optimizer.zero_grad()
                recording.step()
        place = Path(folder) / kind
        place.mkdir(exist_ok=True)
        recording.save(place / f"rank{dist.get_rank()}.json")


def _step(kind: str, model: Any, recording: Any, seed: int) -> None:
    torch.manual_seed(seed)
    total = torch.zeros(())
    scale = 2.0**16 if kind == "scaled loss" else 1.0
    for _ in range(2):
        loss = model(torch.randn(4, WIDTH)).square().mean() / 2
        (loss * scale).backward()
        total += loss.detach()
    for parameter in model.parameters():
        if kind == "scaled loss":
            parameter.grad /= scale
        if kind == "ddp, and reduced by hand":
            dist.all_reduce(parameter.grad)
        if kind == "hsdp summed over replicas":
            parameter.grad *= 2
    if kind == "ddp, and clipped by hand":
        norm = torch.stack([each.grad.norm() for each in model.parameters()]).norm()
        for parameter in model.parameters():
            parameter.grad.mul_((0.03 / norm).clamp(max=1.0))
    elif kind != "fsdp of tp":
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    dist.all_reduce(total)
    recording.observe("train/loss", total / NUM_RANKS)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Frames]:
    folder = tmp_path_factory.mktemp("runs")
    run_processes(_train, NUM_RANKS, str(folder))
    return {kind: frames_of(read_parts(sorted((folder / kind).glob("*.json")))) for kind in KINDS}


@pytest.mark.parametrize("kind", [kind for kind, (num, _) in KINDS.items() if " " not in kind]
                         + ["fsdp in bfloat16", "fsdp of tp"])  # fmt: skip
def test_a_library_reduces_once(kind: str, runs: dict[str, Frames]) -> None:
    num_losses, factor = KINDS[kind]
    table = gradients(runs[kind])
    assert set(table["state"]) == {"right"}
    own = table[table["what"] == "gradient"]
    assert len(own) == 2 * 6
    assert set(own["num_losses"]) == {num_losses}
    assert set(own["num_contributions"]) == set(own["num_reduced"]) == {num_losses}
    assert own["scale"].tolist() == pytest.approx([factor] * len(own), rel=0.02)
    assert not CATALOG["consistency"].function(runs[kind])["is_fault"].any()


def test_the_factor_of_a_gradient_scaler_is_no_fault(runs: dict[str, Frames]) -> None:
    table = gradients(runs["scaled loss"])
    assert not table["is_fault"].any()
    own = table[table["what"] == "gradient"]
    assert own["scale"].tolist() == pytest.approx([0.25 / 2**16] * len(own), rel=1e-3)


def test_a_factor_that_all_gradients_have_in_common_is_no_fault(runs: dict[str, Frames]) -> None:
    table = gradients(runs["ddp, and clipped by hand"])
    own = table[table["what"] == "gradient"]
    assert set(own["state"]) == {"right"}
    assert not table["is_fault"].any()
    assert (own["scale"] < 0.24).all()
    assert own.groupby("step")["scale"].agg(lambda each: each.max() / each.min()).max() < 1.001


@pytest.mark.parametrize("kind", ["ddp, and reduced by hand", "hsdp summed over replicas"])
def test_gradients_that_are_reduced_twice_have_another_factor_than_the_loss(
    kind: str, runs: dict[str, Frames]
) -> None:
    table = gradients(runs[kind])
    own = table[table["what"] == "gradient"]
    assert set(own["state"]) == {"scaled"}
    assert own["is_fault"].all()
    _, factor = KINDS[kind]
    assert own["scale"].tolist() == pytest.approx([factor] * len(own), rel=1e-3)
    assert set(own["expected_scale"]) == {0.25}
    assert not table.loc[table["what"] != "gradient", "is_fault"].any()
