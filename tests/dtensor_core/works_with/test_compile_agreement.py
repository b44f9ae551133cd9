"""Compiled programs have the same collectives on all ranks, also on those with empty shards.

Random programs are compiled on each of four ranks in turn; their graphs are compared with each
other and with the collectives of eager mode. Then some of them run on four threads.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from dtensor_core import DeviceMesh, DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from dtensor_core.testing import fake_world, run_threads
from tests.dtensor_core.works_with.compiled import check, forgotten, needs_cpp  # noqa: F401

Function = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

# Of x and y [N, 4, 4], and of a weight [4, 4], to [N, 4, 4].
STEPS: dict[str, Function] = {
    "product": lambda x, y, w: x * y + x,
    "softmax": lambda x, y, w: x.view(x.shape[0], 16).softmax(-1).view(x.shape) * y,
    "softmax over rows": lambda x, y, w: x.softmax(0) + y,
    "matmul": lambda x, y, w: x @ w,
    "matmul of rows": lambda x, y, w: (
        x.reshape(x.shape[0], -1) @ y.reshape(y.shape[0], -1).t() @ y.flatten(1)
    ).view(x.shape),
    "attention over rows": lambda x, y, w: F.scaled_dot_product_attention(
        x.transpose(0, 1)[None], (x * y).transpose(0, 1)[None], y.transpose(0, 1)[None]
    )[0].transpose(0, 1),
    "layer_norm": lambda x, y, w: F.layer_norm(x, (4,), w[0], w[1]) + y,
    "rms_norm": lambda x, y, w: F.rms_norm(x, (4,), w[0]),
    "silu": lambda x, y, w: F.silu(x) * y,
    "mean of rows": lambda x, y, w: x - x.mean(0, keepdim=True) * y,
    "checkpoint": lambda x, y, w: checkpoint(
        lambda x, y, w: torch.relu(x @ w) @ w.t() + y, x, y, w, use_reentrant=False
    ),
}
LOSSES: dict[str, Function] = {
    "square": lambda x, y, w: x.square().mean(),
    "mse": lambda x, y, w: F.mse_loss(x, y),
    "cross_entropy": lambda x, y, w: F.cross_entropy(x.reshape(x.shape[0], 16), y.flatten(1)),
    "logsumexp": lambda x, y, w: x.flatten(1).logsumexp(0).sum(),
}


def program(seed: int) -> Function:
    """A random sequence of steps, and a loss."""
    chosen = random.Random(seed)
    steps = [STEPS[name] for name in chosen.choices(list(STEPS), k=chosen.randint(1, 3))]
    loss = LOSSES[chosen.choice(list(LOSSES))]

    def run(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for step in steps:
            x = step(x, y, w)
        return loss(x, y, w)

    return run


def arguments(seed: int, rows: int, mesh: DeviceMesh) -> list[DTensor]:
    """Leaves of random layouts, the same on all ranks."""
    chosen = random.Random(seed)
    values = torch.Generator().manual_seed(seed)
    layouts = (Shard(0), Shard(0), Shard(1), Replicate())
    return [
        distribute_tensor(
            torch.rand(shape, generator=values, dtype=torch.float64),
            mesh,
            [chosen.choice(layouts) for _ in range(mesh.ndim)],
        ).requires_grad_()
        for shape in ((rows, 4, 4), (rows, 4, 4), (4, 4))
    ]


def graphs(
    function: Callable[..., torch.Tensor], make: Callable[[DeviceMesh], Sequence[Any]], rank: int
) -> Any:
    """The collectives of forward and backward on one of four ranks."""
    kept: list[list[str]] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        nodes = [n for n in graph.graph.nodes if "_c10d_functional" in str(n.target)]
        kept.append([str(n.target).split(".")[1] for n in nodes if "wait" not in str(n.target)])
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    backend = aot_autograd(
        fw_compiler=keep, bw_compiler=keep, partition_fn=min_cut_rematerialization_partition
    )
    with fake_world(4, rank=rank):
        made = make(init_device_mesh("cpu", (4,)))
        torch.compile(function, backend=backend)(*made).sum().backward()
    return kept


@pytest.mark.parametrize("seed", range(9))
def test_every_rank_compiles_the_same_collectives(seed: int) -> None:
    rows = seed % 9 + 1
    found = [
        graphs(program(seed), lambda mesh: arguments(seed, rows, mesh), rank) for rank in (0, 3)
    ]
    assert found[0] == found[1]


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
    def make(mesh: DeviceMesh) -> list[DTensor]:
        parts = (torch.ones(rows, 6, 2) for _ in range(2))
        return [distribute_tensor(each, mesh, [Shard(0)]).requires_grad_() for each in parts]

    assert [graphs(function, make, rank) for rank in (0, 3)] == [sent, sent]


def compare(seed: int, rows: int, backend: str, shape: tuple[int, ...] = (4,)) -> None:
    mesh = init_device_mesh("cpu", shape)
    check(program(seed), arguments(seed, rows, mesh), backend=backend, fullgraph=False)


@pytest.mark.parametrize(("seed", "shape"), [(100, (2, 2)), (103, (4,)), (104, (4,)), (105, (4,))])
def test_random_programs_are_those_of_eager(seed: int, shape: tuple[int, ...]) -> None:
    run_threads(compare, 4, seed, seed % 9 + 1, "aot_eager", shape, timeout_s=120)


@needs_cpp
def test_random_programs_are_those_of_eager_with_inductor() -> None:
    with torch._inductor.config.patch(compile_threads=1):
        run_threads(compare, 4, 104, 5, "inductor", timeout_s=240)
