"""Values that ranks collect in each step, although training does not need them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import commtrace
from commtrace.analyze import load
from commtrace.analyze.findings import findings
from commtrace.settings import Settings
from commtrace.tracefile import Trace
from dtensor_core.testing import run_processes
from tests.commtrace.analyze.metric_rows import NUM_STEPS, OTHERS, collected


def found(trace: Trace) -> list[dict[str, Any]]:
    table = findings(load(trace))
    return table[table["rule"] == "metrics_each_step"].to_dict("records")


@pytest.mark.parametrize("reader", ["", "aten._local_scalar_dense.default"])
def test_a_loss_that_is_collected_in_each_step_is_found_with_its_wait(reader: str) -> None:
    (one,) = found(collected(reader=reader))
    assert one["title"] == (
        "In most steps, 6 calls of all_gather carry 8 B of a loss that training does not need: it "
        "is collected after the backward pass, at train.py:9. Ranks are blocked for 1 ms of a step "
        "by it, 500 µs of it for the last rank to arrive."
    )
    assert one["change"] == "remove where finding=1"
    # Both ranks are 1 ms faster: rank 1 by its own, rank 0 by its wait and its transfer.
    assert one["cost_ns"] == pytest.approx(NUM_STEPS * 1_000_000)
    assert one["source"] == "train.py:9"


@pytest.mark.parametrize("columns", OTHERS)
def test_what_training_may_need_is_no_metric(columns: dict[str, Any]) -> None:
    assert found(collected(**columns)) == []


def test_a_number_between_the_backward_pass_and_the_optimizer_may_scale_gradients() -> None:
    trace = collected(reader="aten._local_scalar_dense.default")
    ops = trace.tables["ops"]
    ops["phase"] = ["other" if each == "optimizer" else each for each in ops["phase"]]
    assert found(trace) == []
    ops["op"] = ["aten.cat.default" if "scalar" in each else each for each in ops["op"]]
    assert len(found(trace)) == 1


def trained(kind: str, path: str) -> None:
    """Train with a loss that is logged, or with something like it that training needs."""
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(nn.Linear(16, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with commtrace.record(path):
        for _ in range(4):
            loss = model(torch.randn(4, 16)).pow(2).mean()
            value = loss.detach().clone()
            if kind == "counted":
                value = torch.tensor(4.0)
            if kind in ("weights", "counted"):
                dist.all_reduce(value)
                loss = loss / value.item() if kind == "counted" else loss * value
            optimizer.zero_grad()
            loss.backward()
            parameters = [each for each in model.parameters() if each.grad is not None]
            if kind == "norm":
                value = torch.stack([each.grad.norm() for each in parameters]).norm()
            if kind == "finite":
                value = torch.isfinite(value).float()
            if kind not in ("weights", "counted", "logged", "gathered", "averaged", "made"):
                dist.all_reduce(value)
            if kind in ("norm", "scales", "scales by a number"):
                scale = value.item() if kind.endswith("number") else value
                for each in parameters:
                    each.grad.mul_(scale)
            if kind != "finite" or value.item() == dist.get_world_size():
                optimizer.step()
            if kind == "averaged":
                for each in parameters:
                    dist.all_reduce(each.data)
            if kind == "logged":
                dist.all_reduce(value)
                value.item()
            if kind == "made":
                dist.all_reduce(torch.tensor(loss.item()))
            if kind == "gathered":
                parts = [torch.zeros(1) for _ in range(dist.get_world_size())]
                dist.all_gather(parts, loss.detach().reshape(1))
                torch.cat(parts).mean().item()


KINDS = {
    "logged": 1, "gathered": 1, "weights": 0, "norm": 0, "finite": 0, "scales": 0,
    "scales by a number": 0, "averaged": 0, "counted": 0, "made": 0,
}  # fmt: skip
"""Values of training loops, and whether it is known that only a log needs them."""


def all_trained(folder: str) -> None:
    for kind in KINDS:
        trained(kind, f"{folder}/{kind}.json")


def test_values_of_training_loops_are_told_from_those_of_a_log(tmp_path: Path) -> None:
    run_processes(all_trained, 2, str(tmp_path), timeout_s=120)
    settings = Settings(thresholds={"metric_share": 0})
    for kind, num in KINDS.items():
        table = findings(load(tmp_path / f"{kind}.json").with_settings(settings))
        assert (table["rule"] == "metrics_each_step").sum() == num, kind
