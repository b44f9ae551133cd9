"""Every optimizer of torch trains DTensors as it trains full tensors on a single process."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn, optim

from dtensor_core import (
    DeviceMesh,
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
    observe,
)
from dtensor_core.testing.fake import fake_world
from dtensor_core.testing.threads import kept_mesh, on_threads

Tensors = list[torch.Tensor]
# Sizes that four ranks share unevenly, or not at all; each with its mesh and placements.
PARAMETERS: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[Placement, ...]], ...] = (
    ((5, 4), (4,), (Shard(0),)),
    ((4, 3), (4,), (Replicate(),)),
    ((3, 7), (2, 2), (Shard(1), Replicate())),
    ((1, 2), (4,), (Shard(0),)),
    ((6, 5), (2, 2), (Shard(0), Shard(0))),
    ((6, 6), (2, 2), (Shard(0), Shard(1))),
)
OPTIONS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1},
    "SGD with nesterov momentum": {"lr": 0.1, "momentum": 0.9, "nesterov": True},
    "SGD with dampening": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "dampening": 0.1},
    "Adam with amsgrad": {"amsgrad": True},
    "Adam, maximizing": {"weight_decay": 0.1, "maximize": True},
    "RMSprop, centered": {"momentum": 0.9, "centered": True},
    "NAdam, decoupled": {"decoupled_weight_decay": True, "weight_decay": 0.1},
}
# Newton-Schulz runs in bfloat16, where the order of a sum is noticeable.
TOLERANCES = {"Muon": {"rtol": 0.0, "atol": 1e-3}}
APART = ("LBFGS", "SparseAdam")


def _kinds() -> Iterator[str]:
    for name in sorted(optim.__all__ if hasattr(optim, "__all__") else dir(optim)):
        kind = getattr(optim, name)
        if (
            inspect.isclass(kind)
            and issubclass(kind, optim.Optimizer)
            and kind is not optim.Optimizer
        ):
            yield name


def _cases() -> Iterator[tuple[str, str]]:
    for name in (*(k for k in _kinds() if k not in (*APART, "SGD")), *OPTIONS):
        parameters = inspect.signature(_kind(name)).parameters
        yield name, "for-loop"
        yield from ((name, how) for how in ("foreach", "fused") if how in parameters)
        yield name, "lr as a tensor"


def _kind(name: str) -> Any:
    return getattr(optim, name.split()[0].rstrip(","))


def _make(name: str, how: str, parameters: Any) -> optim.Optimizer:
    options = dict(OPTIONS.get(name, {}))
    if how == "lr as a tensor":
        options["lr"] = torch.tensor(0.003, dtype=torch.float64)
    elif how != "for-loop":
        options[how] = True
    elif "foreach" in inspect.signature(_kind(name)).parameters:
        options["foreach"] = False
    return _kind(name)(parameters, **options)


def _t(shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _plain() -> list[nn.Parameter]:
    return [nn.Parameter(_t(shape)) for shape, _, _ in PARAMETERS]


def _laid_out() -> list[nn.Parameter]:
    return [
        nn.Parameter(distribute_tensor(_t(shape), kept_mesh(mesh), placements))
        for shape, mesh, placements in PARAMETERS
    ]


def _gradient(number: int, step: int) -> torch.Tensor:
    return _t(PARAMETERS[number][0], seed=step + 1)


def _pending(full: torch.Tensor, mesh: DeviceMesh, placements: tuple[Placement, ...]) -> DTensor:
    """A gradient as backward returns it: sharded like the parameter, else equal partial sums."""
    pending = [Partial() if each.is_replicate() else each for each in placements]
    ranks = math.prod(n for n, each in zip(mesh.shape, pending, strict=True) if each.is_partial())
    part = distribute_tensor(full / ranks, mesh, placements).to_local()
    return DTensor.from_local(part, mesh, pending, shape=full.shape, stride=full.stride())


def _equal(found: list[nn.Parameter], wanted: list[nn.Parameter], **tolerance: Any) -> None:
    for got, want in zip(found, wanted, strict=True):
        assert isinstance(got, DTensor)
        torch.testing.assert_close(got.full_tensor(), want.detach(), **tolerance)


@pytest.mark.parametrize(("name", "how"), list(_cases()))
def test_an_optimizer_trains_shards_as_it_trains_full_tensors(name: str, how: str) -> None:
    plain = _plain()
    optimizer = _make(name, how, plain)
    for step in range(3):
        for number, parameter in enumerate(plain):
            parameter.grad = _gradient(number, step)
        optimizer.step()

    @on_threads(4)
    def body() -> None:
        mine = _laid_out()
        optimizer = _make(name, how, mine)
        for step in range(3):
            for number, (parameter, (_, mesh, placements)) in enumerate(
                zip(mine, PARAMETERS, strict=True)
            ):
                full = _gradient(number, step)
                parameter.grad = _pending(full, kept_mesh(mesh), placements)
            optimizer.step()
            optimizer.zero_grad(set_to_none=step == 0)
        _equal(mine, plain, **TOLERANCES.get(name, {}))

    body()


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_searches_shards_as_it_searches_full_tensors(search: str | None) -> None:
    def train(parameters: list[nn.Parameter]) -> None:
        optimizer = optim.LBFGS(parameters, lr=0.1, line_search_fn=search)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = torch.stack([((p - 1) ** 4).sum() for p in parameters]).sum()
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)  # pyright: ignore[reportArgumentType]

    def chosen(parameters: list[nn.Parameter]) -> list[nn.Parameter]:
        return [parameters[0], parameters[1], parameters[3]]  # those of one mesh

    plain = chosen(_plain())
    train(plain)

    @on_threads(4)
    def body() -> None:
        mine = chosen(_laid_out())
        train(mine)
        _equal(mine, plain)

    body()


def _reported(name: str, how: str, mesh: DeviceMesh) -> list[tuple[str, str]]:
    parameter = nn.Parameter(distribute_tensor(torch.ones(4, 4), mesh, [Replicate()]))
    parameter.grad = DTensor.from_local(torch.ones(4, 4), mesh, [Partial()])
    reasons: list[observe.Reason] = []
    optimizer = _make(name, how, [parameter])
    with observe.listening(reasons.append):
        optimizer.step()
    return [(reason.operator, reason.step) for reason in reasons]


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with fake_world(4):
        yield init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))


@pytest.mark.parametrize("how", ["for-loop", "foreach", "fused"])
def test_a_step_reduces_each_pending_gradient_once(mesh: DeviceMesh, how: str) -> None:
    assert _reported("AdamW", how, mesh) == [("optimizer.step", "all_reduce")]


def test_state_made_like_the_gradient_is_laid_out_like_the_parameter(mesh: DeviceMesh) -> None:
    parameter = nn.Parameter(distribute_tensor(torch.ones(8, 4), mesh, [Shard(0)]))
    parameter.grad = distribute_tensor(torch.ones(8, 4), mesh, [Replicate()])
    optimizer = optim.SGD([parameter], lr=0.1, momentum=0.9, fused=True)
    optimizer.step()
    assert optimizer.state[parameter]["momentum_buffer"].placements == (Shard(0),)


def test_a_gradient_laid_out_like_its_parameter_is_left_alone(mesh: DeviceMesh) -> None:
    parameter = nn.Parameter(distribute_tensor(torch.ones(8, 4), mesh, [Shard(0)]))
    gradient = distribute_tensor(torch.ones(8, 4), mesh, [Shard(0)])
    parameter.grad = gradient
    optim.SGD([parameter], lr=0.1).step()
    assert parameter.grad is gradient


def test_a_differentiable_step_has_the_gradients_of_one_process() -> None:
    def derived(start: torch.Tensor, gradient: torch.Tensor, lr: torch.Tensor) -> torch.Tensor:
        weight = start.clone()
        weight.grad = gradient
        optim.Adam([weight], lr=lr, differentiable=True, capturable=False).step()
        return (weight**2).sum()

    full = _t((5, 4)).requires_grad_(), _t((5, 4), 1).requires_grad_()
    lr = torch.tensor(0.01, dtype=torch.float64)
    derived(*full, lr).backward()

    @on_threads(2)
    def body() -> None:
        mine = [distribute_tensor(each, kept_mesh((2,)), [Shard(0)]) for each in full]
        derived(mine[0], mine[1], lr).backward()
        for got, want in zip(mine, full, strict=True):
            assert isinstance(got.grad, DTensor)
            torch.testing.assert_close(got.grad.full_tensor(), want.grad)

    body()


def test_a_stored_state_continues_the_run(mesh: DeviceMesh) -> None:
    def trained(parameter: nn.Parameter, optimizer: optim.Optimizer, steps: range) -> None:
        for step in steps:
            parameter.grad = distribute_tensor(_t((6, 4), step), mesh, [Shard(0)])
            optimizer.step()

    def fresh() -> tuple[nn.Parameter, optim.Optimizer]:
        parameter = nn.Parameter(
            distribute_tensor(_t((6, 4)), mesh, [Shard(0)], src_data_rank=None)
        )
        return parameter, optim.AdamW([parameter])

    full, first = fresh(), fresh()
    trained(*full, range(4))
    trained(*first, range(2))
    second = nn.Parameter(first[0].detach().clone()), fresh()[1]
    second[1].param_groups[0]["params"] = [second[0]]
    second[1].load_state_dict(copy.deepcopy(first[1].state_dict()))
    assert second[1].state[second[0]]["exp_avg"].placements == (Shard(0),)
    trained(*second, range(2, 4))
    got, wanted = second[0].detach(), full[0].detach()
    assert isinstance(got, DTensor)
    assert isinstance(wanted, DTensor)
    torch.testing.assert_close(got.to_local(), wanted.to_local())


@pytest.mark.parametrize("ema", [False, True])
def test_averaged_models_average_shards(ema: bool) -> None:
    averaging = optim.swa_utils.get_ema_multi_avg_fn(0.9) if ema else None

    def averaged(model: nn.Linear) -> nn.Module:
        average = optim.swa_utils.AveragedModel(model, multi_avg_fn=averaging)
        for step in range(3):
            with torch.no_grad():
                model.weight.add_(step)
            average.update_parameters(model)
        return average.module

    def linear() -> nn.Linear:
        model = nn.Linear(4, 5, bias=False, dtype=torch.float64)
        model.weight = nn.Parameter(_t((5, 4)))
        return model

    wanted = averaged(linear()).weight

    @on_threads(2)
    def body() -> None:
        model = linear()
        model.weight = nn.Parameter(distribute_tensor(model.weight, kept_mesh((2,)), [Shard(0)]))
        got = averaged(model).weight
        assert isinstance(got, DTensor)
        torch.testing.assert_close(got.full_tensor(), wanted)

    body()
