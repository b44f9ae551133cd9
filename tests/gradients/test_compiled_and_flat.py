"""Reductions of compiled modules and of flat parameters are judged like others."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

import commtrace
from commtrace.analyze import CATALOG, Frames
from commtrace.analyze.gradients import gradients
from commtrace.analyze.run.frame import frames_of
from commtrace.analyze.values import compare
from commtrace.tracefile import read_parts
from dtensor_core.testing import run_processes

NUM_RANKS, WIDTH, NUM_STEPS = 2, 8, 2
NORM = ("2.weight", "2.bias")
SHAPES = {
    "0.weight": "[8,8]",
    "0.bias": "[8]",
    "2.weight": "[8]",
    "2.bias": "[8]",
    "3.weight": "[8,8]",
    "3.bias": "[8]",
}
FAULTS = {
    # name: (state, factor relative to the right one)
    "aot_eager, norm dropped": ("missing", 2.0),
    "aot_eager, norm doubled": ("scaled", 2.0),
    "aot_eager, norm divided": ("scaled", 0.5),
}
RIGHT = ("eager, by hand", "aot_eager, by hand", "eager, ddp", "aot_eager, ddp")
FLAT = {
    # name: (state of the norm's gradients, that of the others, factor of these)
    "flat": ("right", "right", 0.5),
    "flat with names": ("right", "right", 0.5),
    "flat clipped": ("right", "right", 0.5),
    "flat clipped with names": ("right", "right", 0.5),
    "flat unsharded": ("right", "right", 0.5),
    "flat doubled": ("scaled", "scaled", 1.0),
    "flat without the norm": ("missing", "right", 0.5),
}
FEW = 0.01
"""Norm to which gradients are clipped."""


def _parallel(kind: str, model: Any) -> Any:
    if kind.startswith("flat"):
        sharded = ShardingStrategy.NO_SHARD if "unsharded" in kind else None
        return FullyShardedDataParallel(
            model,
            device_id=torch.device("cpu"),
            sharding_strategy=sharded,
            use_orig_params=kind.endswith("names"),
            ignored_modules=[model[2]] if "without" in kind else None,
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
                if "clipped" in kind:
                    model.clip_grad_norm_(FEW)
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
def test_gradients_of_flat_parameters_are_those_of_the_original_ones(
    kind: str, runs: dict[str, Frames]
) -> None:
    table = gradients(runs[kind])
    of_norm, of_others, factor = FLAT[kind]
    found = table[table["what"] == "gradient"]
    assert Counter(found["name"]) == {
        name: NUM_STEPS * (2 if name in NORM and of_norm == "missing" else 1) for name in SHAPES
    }
    assert dict(zip(found["name"], found["shape"], strict=True)) == SHAPES
    is_norm = found["name"].isin(NORM)
    assert set(found.loc[is_norm, "state"]) == {of_norm}
    others = found[~is_norm]
    assert set(others["state"]) == {of_others}
    assert others["scale"].tolist() == pytest.approx([factor] * len(others), rel=1e-3)
    assert set(others["num_reduced"]) == {2}
    assert others["reduced_over"].str.contains("ranks 0, 1").all()
    kind_of_call = "all_reduce" if "unsharded" in kind else "reduce_scatter"
    assert others["calls"].str.contains(kind_of_call).all()
    assert (table["is_fault"] == (table["state"] != "right")).all()
    assert set(table.loc[table["what"] == "loss", "state"]) == {"right"}
    is_right = {of_norm, of_others} == {"right"}
    assert CATALOG["consistency"].function(runs[kind])["is_fault"].any() != is_right


@pytest.mark.parametrize("kind", ["flat clipped", "flat clipped with names"])
def test_the_norm_and_clipping_of_flat_gradients_are_judged(
    kind: str, runs: dict[str, Frames]
) -> None:
    table = gradients(runs[kind])
    for what in ("gradient norm", "clipping"):
        assert set(table.loc[table["what"] == what, "state"]) == {"right"}


def test_a_compiled_program_is_compared_with_that_of_plain_modules(
    runs: dict[str, Frames],
) -> None:
    plain = runs["eager, by hand"]
    for kind in ("aot_eager, by hand", "eager, ddp", "flat", "flat with names"):
        found = compare(plain, runs[kind])
        assert found.agrees, (kind, found.fault)
        assert len(found.pairs[found.pairs["role"] == "gradient"]) == NUM_STEPS * len(SHAPES)
    for kind, (state, factor) in FAULTS.items():
        fault = compare(plain, runs[kind]).fault
        assert fault is not None
        assert (fault.right["role"], fault.right["step"]) == ("gradient", 0)
        assert fault.right["name"] in NORM
        if state == "scaled":
            assert fault.relation.factor == pytest.approx(factor, rel=1e-3)
