"""Compiled programs have the same collectives on all ranks, also on those with empty shards.

Random programs are compiled on two of four ranks in turn; `compiled_programs` runs any number of
them. Then some of them run on four threads, and on four processes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from dtensor_core import DeviceMesh, Shard, distribute_tensor
from dtensor_core.testing import run_processes, run_threads
from tests.dtensor_core.works_with.compiled import forgotten, needs_cpp  # noqa: F401
from tests.dtensor_core.works_with.compiled_programs import (
    PREPARE,
    compare,
    differences,
    graphs,
    program,
)


@pytest.mark.parametrize("seed", range(9))
def test_every_rank_compiles_the_same_collectives(seed: int) -> None:
    assert not differences(program(seed))


@pytest.mark.parametrize("seed", [70048, 82037])
def test_every_rank_compiles_the_same_collectives_with_inductor(seed: int) -> None:
    assert not differences(program(seed), "inductor")


def gathered_in_backward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x * y + x).view(x.shape[0], -1).softmax(-1) @ y.reshape(y.shape[0], -1).t()


def attention(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    q, k, v = (each.movedim(0, 1)[None] for each in (x * y, x, y))
    return F.scaled_dot_product_attention(q, k, v)


GATHER, SCATTER = "all_gather_into_tensor", "reduce_scatter_tensor"


@pytest.mark.parametrize("rows", [7, 5])
@pytest.mark.parametrize(
    ("function", "sent"),
    [
        (gathered_in_backward, [[GATHER], [GATHER, SCATTER]]),
        (attention, [[GATHER] * 2, [GATHER] * 2 + [SCATTER] * 2]),
    ],
)
def test_compilers_move_merge_and_repeat_no_collective(
    function: Callable[..., torch.Tensor], sent: list[list[str]], rows: int
) -> None:
    def make(mesh: DeviceMesh) -> list[torch.Tensor]:
        parts = (torch.ones(rows, 6, 2) for _ in range(2))
        return [distribute_tensor(each, mesh, [Shard(0)]).requires_grad_() for each in parts]

    for rank in (0, 3):
        found = [[name for name, _ in graph] for graph in graphs(function, make, rank)]
        assert found == sent


def exchanged(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The backward exchanges columns for rows before it uses the tangent."""
    return F.mse_loss(x, y)


class Itself(torch.autograd.Function):
    """The tensor itself is its gradient, whatever the tangent."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.redistribute(placements=[Shard(0)]).clone()  # pyright: ignore

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # pyright: ignore
        return ctx.saved_tensors[0]


def without_tangent(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return Itself.apply(x)  # pyright: ignore


EXCHANGE = "all_to_all_single"


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # dynamo's
@pytest.mark.parametrize("backend", PREPARE)
@pytest.mark.parametrize(
    ("function", "sent"),
    [(exchanged, [[EXCHANGE], [EXCHANGE] * 2]), (without_tangent, [[EXCHANGE], []])],
)
def test_compilers_keep_each_collective_where_it_was_traced(
    function: Callable[..., torch.Tensor], sent: list[list[str]], backend: str
) -> None:
    """Rank 3 of four has none of two rows, and uses nothing that it receives."""

    def make(mesh: DeviceMesh) -> list[torch.Tensor]:
        placements = ([Shard(1)], [Shard(0)])
        made = (distribute_tensor(torch.ones(2, 4), mesh, each) for each in placements)
        return [each.requires_grad_() for each in made]

    for rank in (0, 3):
        found = [
            [name for name, _ in each] for each in graphs(function, make, rank, backend=backend)
        ]
        assert found == sent


@pytest.mark.parametrize("seed", [14, 22, 37, 40])
def test_random_programs_are_those_of_eager(seed: int) -> None:
    run_threads(compare, 4, program(seed), "aot_eager", timeout_s=120)


def test_random_programs_are_those_of_eager_on_gloo() -> None:
    run_processes(compare, 4, program(41), "aot_eager", timeout_s=120)


@needs_cpp
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # inductor's own
def test_random_programs_are_those_of_eager_with_inductor() -> None:
    with torch._inductor.config.patch(compile_threads=1):  # pyright: ignore
        run_threads(compare, 4, program(104), "inductor", timeout_s=240)
