"""Autocast and loss scaling over DTensors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dtensor_core import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
    observe,
)
from dtensor_core.testing.fake import fake_world
from dtensor_core.testing.threads import kept_mesh, on_threads
from tests.dtensor_core.works_with.layouts import assert_close, model, numbers, parallel

FLOAT = torch.float32
INPUT = numbers(3, 6, dtype=FLOAT)


@pytest.mark.parametrize("cache_enabled", [False, True])
def test_autocast_runs_layers_in_the_lower_precision(cache_enabled: bool) -> None:
    @on_threads(2)
    def body() -> None:
        plain, mine = model(FLOAT), parallel(kept_mesh((2,)), model(FLOAT))
        out: list[Any] = []
        for each in (plain, mine):
            with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=cache_enabled):
                out.append(each(INPUT))
            out[-1].float().pow(2).sum().backward()
        assert out[1].dtype == torch.bfloat16
        assert_close(out[1], out[0], rtol=0.05, atol=0.05)
        for one, two in zip(plain.parameters(), mine.parameters(), strict=True):
            assert two.grad.dtype == FLOAT
            assert_close(two.grad, one.grad, rtol=0.1, atol=0.1)

    body()


@pytest.mark.parametrize("name", ["softmax", "exp", "matmul", "layer_norm", "sum", "mean"])
def test_autocast_gives_the_dtype_that_it_gives_plain_tensors(name: str) -> None:
    def run(x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            match name:
                case "matmul":
                    return x @ x.T
                case "layer_norm":
                    return nn.functional.layer_norm(x, (4,))
                case "softmax":
                    return x.softmax(-1)
        return getattr(x, name)()

    wanted = run(torch.ones(8, 4))
    with fake_world(2):
        mine = distribute_tensor(torch.ones(8, 4), init_device_mesh("cpu", (2,)), [Shard(0)])
        assert run(mine).dtype == wanted.dtype


def test_recomputation_repeats_autocast() -> None:
    with fake_world(2):
        mine = parallel(init_device_mesh("cpu", (2,)), model(FLOAT))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out: Any = checkpoint(mine, INPUT, use_reentrant=False)
        out.float().sum().backward()
        assert mine[0].weight.grad.dtype == FLOAT


@pytest.mark.parametrize("infinite_on", [None, 1])
@pytest.mark.parametrize("fused", [False, True])
def test_scaled_steps_are_those_of_one_process(infinite_on: int | None, fused: bool) -> None:
    def train(each: Any, rank: int | None) -> float:
        optimizer = torch.optim.AdamW(each.parameters(), lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(3):
            optimizer.zero_grad()
            scaler.scale(each(INPUT).pow(2).sum()).backward()
            if step == 1 and infinite_on is not None:
                gradient = each[0].weight.grad
                if rank is None:
                    gradient.fill_(math.inf)
                elif rank == infinite_on:
                    gradient.to_local().fill_(math.inf)
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(each.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        return scaler.get_scale()

    plain = model(FLOAT)
    scale = train(plain, None)

    @on_threads(2)
    def body() -> None:
        mesh = kept_mesh((2,))
        mine = parallel(mesh, model(FLOAT))
        assert train(mine, mesh.get_rank()) == scale
        assert_close(list(mine.parameters()), list(plain.parameters()), rtol=1e-4, atol=1e-5)

    body()


def test_unscaling_reduces_one_number_and_pending_gradients() -> None:
    with fake_world(4):
        mesh = init_device_mesh("cpu", (4,))
        parameters = [
            nn.Parameter(distribute_tensor(torch.ones(8), mesh, [layout]))
            for layout in (Shard(0), Shard(0), Replicate())
        ]
        for parameter in parameters[:2]:
            parameter.grad = torch.ones_like(parameter)
        parameters[2].grad = DTensor.from_local(torch.ones(8), mesh, [Partial()]) * 1
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        scaler.scale(torch.ones(()))
        reasons: list[observe.Reason] = []
        with observe.listening(reasons.append):
            scaler.unscale_(torch.optim.SGD(parameters, lr=0.1))
    sent = [(reason.argument, reason.step, reason.payload_bytes) for reason in reasons]
    assert sent == [("self[2]", "all_reduce", 32), ("found_inf", "all_reduce", 4)]
