"""Faults that are planted in programs are found where they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from commtrace.analyze import CATALOG, Frames
from commtrace.analyze.values import compare
from dtensor_core import DTensor, Partial, Replicate, Shard
from tests.values.programs import (
    Transformer,
    by_batch,
    recorded,
    replicated,
    tensor_parallel,
)

Fault = Callable[[nn.Module, int], Any]
Change = Callable[[Any], Any]


@contextmanager
def output(
    module: str, change: Callable[[Any], Any], model: nn.Module, step: int
) -> Iterator[None]:
    """Change the output of a module in the second step."""
    handle = None
    if step == 1:
        handle = model.get_submodule(module).register_forward_hook(lambda *args: change(args[2]))
    yield
    if handle is not None:
        handle.remove()


@contextmanager
def gradient(
    name: str, change: Callable[[Any], Any], model: nn.Module, step: int
) -> Iterator[None]:
    """Change the gradient of a parameter in the second step."""
    handle = model.get_parameter(name).register_hook(change) if step == 1 else None
    yield
    if handle is not None:
        handle.remove()


@contextmanager
def stale(module: str, model: nn.Module, step: int) -> Iterator[None]:
    """Return the output of the first step from a module in the second one."""

    def keep(own: nn.Module, _: Any, result: torch.Tensor) -> torch.Tensor | None:
        if step == 0:
            own.__dict__["kept"] = result.detach()
            return None
        return own.__dict__["kept"]

    handle = model.get_submodule(module).register_forward_hook(keep)
    yield
    handle.remove()


def _local(change: Callable[[torch.Tensor], torch.Tensor], tensor: DTensor) -> DTensor:
    """Change the local part of a tensor, whatever its layout states."""
    local = change(tensor.to_local())
    return DTensor.from_local(local, tensor.device_mesh, tensor.placements, run_check=False)


def _reduced_twice(tensor: DTensor) -> DTensor:
    """Take a replicated tensor for addends, and reduce it again."""
    mesh = tensor.device_mesh
    addends = DTensor.from_local(tensor.to_local(), mesh, [Partial()], run_check=False)
    return addends.redistribute(mesh, [Replicate()])


def _of_rank(rank: int, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return lambda local: change(local) if dist.get_rank() == rank else local


DP = {"sizes": {"dp": 4}, "parallelize": replicated, "feed": by_batch}
TP = {"sizes": {"tp": 4}, "parallelize": tensor_parallel}
UP, DOWN, NORM = "layers.1.up", "layers.1.down", "layers.0.norm"

FAULTS: dict[str, tuple[dict[str, Any], Fault, str, str]] = {
    "a gradient reduced twice": (
        DP, partial(gradient, f"{UP}.weight", lambda g: g * 4), UP, "factor",
    ),
    "a gradient divided by the ranks": (
        DP, partial(gradient, f"{NORM}.weight", lambda g: g / 4), NORM, "factor",
    ),
    "a gradient that is lost": (
        DP, partial(gradient, f"{DOWN}.bias", lambda g: g * 0), DOWN, "zero",
    ),
    "one percent of a gradient lost": (
        DP, partial(gradient, f"{DOWN}.weight", lambda g: g * 0.99), DOWN, "factor",
    ),
    "a gradient in another order": (
        TP, partial(gradient, f"{UP}.weight", partial(_local, lambda g: g.roll(1, 0))), UP,
        "permuted",
    ),
    "an output reduced twice": (
        DP | {"feed": lambda tokens, mesh: by_batch(tokens, mesh).redistribute(placements=[
            Replicate()])}, partial(output, UP, _reduced_twice), UP, "factor",
    ),
    "shards that are off by one": (
        DP, partial(output, DOWN, partial(_local, lambda x: x.roll(1, -1))), DOWN, "permuted",
    ),
    "ranks that exchange their shards": (
        DP,
        partial(output, NORM, lambda x: DTensor.from_local(
            x.redistribute(placements=[Replicate()]).to_local().roll(1, 0)[dist.get_rank()][None],
            x.device_mesh, [Shard(0)], run_check=False)),
        NORM, "permuted",
    ),
    "one rank's part is wrong": (
        DP, partial(output, UP, partial(_local, _of_rank(2, lambda x: x * 1.5))), UP, "other",
    ),
    "one rank's part is not a number": (
        DP, partial(output, UP, partial(_local, _of_rank(1, lambda x: x / 0))), UP, "non_finite",
    ),
    "an output of the step before": (DP, partial(stale, UP), UP, "stale"),
}  # fmt: skip


@cache
def right() -> Frames:
    return recorded(Transformer)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_where_it_is(name: str) -> None:
    options, fault, module, kind = FAULTS[name]
    found = compare(right(), recorded(Transformer, 4, fault=fault, **options)).fault
    assert found is not None
    assert (found.right["step"], found.right["module"]) == (1, module)
    assert found.relation.kind == kind, found.relation
    assert found.is_certain


def test_replicas_that_come_apart_are_found_without_a_second_run() -> None:
    change = partial(_local, _of_rank(3, lambda x: x + 1e-6))
    fault = partial(gradient, f"{DOWN}.bias", change)
    run = recorded(Transformer, 4, fault=fault, level="module", **TP)
    problems = CATALOG["consistency"].function(run)
    (problem,) = problems[problems["is_fault"]].to_dict("records")
    assert (problem["problem"], problem["ranks"]) == ("replicas differ", "3")
    assert f"{DOWN}.bias" in problem["explanation"]
