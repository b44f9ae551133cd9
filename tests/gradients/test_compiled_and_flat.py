"""Reductions of compiled modules are judged like others; flat parameters raise no false alarm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

import commtrace
from commtrace.analyze import CATALOG, Frames
from commtrace.analyze.frame import frames_of
from commtrace.analyze.gradients import gradients
from commtrace.tracefile import read_parts
from dtensor_core.testing import run_processes

NUM_RANKS, WIDTH, NUM_STEPS = 2, 8, 2
NORM = ("2.weight", "2.bias")
FAULTS = {
    # name: (state, factor relative to the right one)
    "aot_eager, norm dropped": ("missing", 2.0),
    "aot_eager, norm doubled": ("scaled", 2.0),
    "aot_eager, norm divided": ("scaled", 0.5),
}
RIGHT = ("eager, by hand", "aot_eager, by hand", "eager, ddp", "aot_eager, ddp")
FLAT = ("flat", "flat with names", "flat doubled")


def _parallel(kind: str, model: Any) -> Any:
    if kind.startswith("flat"):
        return FullyShardedDataParallel(
            model, device_id=torch.device("cpu"), use_orig_params=kind == "flat with names"
        )
    compiled: Any = torch.compile(model, backend=kind.partition(",")[0])
    return nn.parallel.DistributedDataParallel(compiled) if kind.endswith("ddp") else compiled


def _reduce(kind: str, name: str, gradient: torch.Tensor) -> None:
    if kind.endswith("ddp"):
        return
    if kind.startswith("flat"):
        gradient *= 2 if kind == "flat doubled" else 1
        return
    fault = kind.rpartition(" ")[2] if name.endswith(NORM) else ""
    if fault != "dropped":
        dist.all_reduce(gradient)
        gradient /= NUM_RANKS
    gradient *= {"doubled": 2.0, "divided": 0.5}.get(fault, 1.0)


def _train(folder: str) -> None:
    for kind in (*RIGHT, *FAULTS, *FLAT):
        torch.manual_seed(0)
        layers = nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        model = _parallel(kind, nn.Sequential(*layers))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with commtrace.record(values="module") as recording:
            for step in range(NUM_STEPS):
                torch.manual_seed(10 * step + dist.get_rank())
                loss = model(torch.randn(4, WIDTH)).square().mean()
                loss.backward()
                for name, parameter in model.named_parameters():
                    if parameter.grad is not None:
                        _reduce(kind, name, parameter.grad)
                loss = loss.detach()
                dist.all_reduce(loss)
                recording.observe("loss", loss / NUM_RANKS)
                optimizer.step()
                optimizer.zero_grad()
                recording.step()
        place = Path(folder) / kind
        place.mkdir(exist_ok=True)
        recording.save(place / f"rank{dist.get_rank()}.json")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Frames]:
    folder = tmp_path_factory.mktemp("runs")
    run_processes(_train, NUM_RANKS, str(folder))
    return {
        kind: frames_of(read_parts(sorted((folder / kind).glob("*.json"))))
        for kind in (*RIGHT, *FAULTS, *FLAT)
    }


@pytest.mark.parametrize("kind", RIGHT)
def test_compiled_modules_reduce_once(kind: str, runs: dict[str, Frames]) -> None:
    table = gradients(runs[kind])
    assert set(table["state"]) == {"right"}
    assert len(table[table["what"] == "gradient"]) == NUM_STEPS * 6
    fingerprints = runs[kind].fingerprints
    assert {"output", "output_gradient", "local_gradient"} <= set(fingerprints["role"])
    assert not CATALOG["consistency"].function(runs[kind])["is_fault"].any()


@pytest.mark.parametrize("kind", FAULTS)
def test_a_wrong_reduction_of_a_compiled_module_is_found(
    kind: str, runs: dict[str, Frames]
) -> None:
    table, (state, factor) = gradients(runs[kind]), FAULTS[kind]
    found = table[table["is_fault"]]
    assert set(found["name"]) == set(NORM)
    assert set(found["state"]) == {state}
    assert set(found["step"]) == set(range(NUM_STEPS))
    ratio = (found["scale"] / found["expected_scale"]).tolist()
    assert ratio == pytest.approx([factor] * len(found), rel=1e-3)
    problems = CATALOG["consistency"].function(runs[kind])
    assert set(problems["problem"]) == {"wrong reduction"}


@pytest.mark.parametrize("kind", FLAT)
def test_gradients_of_flat_parameters_are_unknown_and_no_fault(
    kind: str, runs: dict[str, Frames]
) -> None:
    table = gradients(runs[kind])
    of_gradients = table[table["what"] == "gradient"]
    assert len(of_gradients)
    assert set(of_gradients["state"]) == {"unknown"}
    assert (of_gradients["explanation"] != "").all()
    assert set(table.loc[table["what"] == "loss", "state"]) == {"right"}
    assert not CATALOG["consistency"].function(runs[kind])["is_fault"].any()
