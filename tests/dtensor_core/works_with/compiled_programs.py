"""Random programs on DTensors, to be compiled: `python -m …works_with.compiled_programs --count N`.

A program is some steps on x and y [rows, 4, 4] and a weight [4, 4], where a part may be a region of
activation checkpointing, then a loss; rows, layouts and mesh are random, too. Compiled on each
rank in turn, each process group must have the same collectives on its ranks, and the forward graph
must match eager mode. Run on ranks that are threads or processes, its results and gradients must
match a single device in eager mode, and compiled the same, with the same layouts. Prints each
failing seed with its program, and exits with 1 if any seed fails.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.compile_fx import compile_fx
from torch.nn import functional as F
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from dtensor_core import (
    DeviceMesh,
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
)
from dtensor_core.parallel import loss_parallel
from dtensor_core.testing import fake_world, run_processes, run_threads
from dtensor_core.torch_internals.groups import resolve_group
from tests.dtensor_core.counting import Collectives
from tests.dtensor_core.works_with.compiled import check, full

Function = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def _again(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Repeat products in the backward, and keep everything else."""
    products = (torch.ops.aten.mm.default, torch.ops.aten.bmm.default)
    return CheckpointPolicy.MUST_RECOMPUTE if op in products else CheckpointPolicy.MUST_SAVE


def _mlp(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w) @ w.t() + y


def _attention(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    q, k, v = (each.transpose(0, 1)[None] for each in (x, x * y, y))
    return F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)


def _classes(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The loss of logits that are sharded by classes, see `loss_parallel`."""
    logits = x.flatten(1)
    if isinstance(logits, DTensor):
        rest = [Replicate()] * (logits.device_mesh.ndim - 1)
        logits = logits.redistribute(placements=[*rest, Shard(1)])
    return F.cross_entropy(logits, (y.detach()[:, 0, 0] * 15).long() % 16)


def _replicated(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    if isinstance(x, DTensor):
        x = x.redistribute(placements=[Replicate()] * x.device_mesh.ndim)
    return x


STEPS: dict[str, Function] = {
    "product": lambda x, y, w: x * y + x,
    "softmax": lambda x, y, w: x.reshape(x.shape[0], 16).softmax(-1).view(x.shape) * y,
    "softmax over rows": lambda x, y, w: x.softmax(0) + y,
    "matmul": lambda x, y, w: x @ w,
    "matmul of flat rows": lambda x, y, w: (x.reshape(-1, 4) @ w).view(x.shape),
    "matmul of rows": lambda x, y, w: (
        x.reshape(x.shape[0], -1) @ y.reshape(y.shape[0], -1).t() @ y.flatten(1)
    ).view(x.shape),
    "einsum": lambda x, y, w: torch.einsum("nij,njk->nik", x, y),
    "attention over rows": _attention,
    "layer_norm": lambda x, y, w: F.layer_norm(x, (4,), w[0], w[1]) + y,
    "rms_norm": lambda x, y, w: F.rms_norm(x, (4,), w[0]),
    "group_norm": lambda x, y, w: F.group_norm(x, 2) * y,
    "silu": lambda x, y, w: F.silu(x) * y,
    "embedding": lambda x, y, w: x + F.embedding((y.detach()[..., 0] * 3.99).long() % 4, w),
    "conv": lambda x, y, w: F.conv1d(x, w.unsqueeze(-1).expand(-1, -1, 3), padding=1) + y,
    "mean of rows": lambda x, y, w: x - x.mean(0, keepdim=True) * y,
    "variance of rows": lambda x, y, w: y / (1 + x.var(0, correction=0, keepdim=True)),
    "maximum of rows": lambda x, y, w: x - y.amax(0, keepdim=True),
    "cumsum": lambda x, y, w: x.cumsum(0) * y,
    "cat": lambda x, y, w: torch.cat([x[:, :1], y[:, 1:]], 1),
    "chunks of rows": lambda x, y, w: torch.cat(x.chunk(2)[::-1]) + y,
    "transpose": lambda x, y, w: x.transpose(1, 2) + y,
    "roll": lambda x, y, w: x.roll(1, 0) * y,
    "where": lambda x, y, w: torch.where(x > y, x, y * 2),
    "in place": lambda x, y, w: x.clone().mul_(y).add_(1),
    "replicated": _replicated,
    "checkpoint": lambda x, y, w: checkpoint(_mlp, x, y, w, use_reentrant=False),
    "checkpoint of attention": lambda x, y, w: checkpoint(_attention, x, y, w, use_reentrant=False),
    "selective checkpoint": lambda x, y, w: checkpoint(
        _mlp,
        x,
        y,
        w,
        use_reentrant=False,
        context_fn=partial(create_selective_checkpoint_contexts, _again),
    ),
}
LOSSES: dict[str, Function] = {
    "square": lambda x, y, w: x.square().mean(),
    "sum": lambda x, y, w: x.sum(),
    "partial": lambda x, y, w: x.sum(0) @ w,
    "mse": lambda x, y, w: F.mse_loss(x, y),
    "cross_entropy": lambda x, y, w: F.cross_entropy(x.reshape(x.shape[0], 16), y.flatten(1)),
    "logsumexp": lambda x, y, w: x.flatten(1).logsumexp(0).sum(),
    "loss_parallel": _classes,
}
MESHES = ((4,), (4,), (2, 2), (2, 1, 2))


@dataclass(frozen=True)
class Program:
    """The program of a seed, which is the same on all ranks."""

    seed: int
    steps: tuple[str, ...]
    loss: str
    rows: int
    mesh: tuple[int, ...]
    region: tuple[int, int]
    """The first step of a checkpoint, and the step after it; none if they are the same."""

    def __call__(self, x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        first, end = self.region
        x = _steps(self.steps[:first], x, y, w)
        if first < end:
            x = checkpoint(_steps, self.steps[first:end], x, y, w, use_reentrant=False)
        x = _steps(self.steps[end:], x, y, w)
        return LOSSES[self.loss](x, y, w)

    def context(self) -> AbstractContextManager[None]:
        """Return the context of forward and backward."""
        return loss_parallel() if self.loss == "loss_parallel" else nullcontext()

    def arguments(self, mesh: DeviceMesh) -> list[torch.Tensor]:
        """Leaves of random layouts."""
        chosen = random.Random(self.seed)
        values = torch.Generator().manual_seed(self.seed)
        layouts = (Shard(0), Shard(0), Shard(1), Replicate(), Partial())
        made: list[torch.Tensor] = []
        for shape in ((self.rows, 4, 4), (self.rows, 4, 4), (4, 4)):
            # y has numbers of classes, so that no part of it is Partial.
            kinds = layouts[: 4 if len(made) == 1 else 5]
            placements = [chosen.choice(kinds) for _ in range(mesh.ndim)]
            full = torch.rand(shape, generator=values, dtype=torch.float64)
            held = [Replicate() if p.is_partial() else p for p in placements]
            local = distribute_tensor(full, mesh, held).to_local()
            tensor = DTensor.from_local(
                local, mesh, placements, shape=full.shape, stride=full.stride()
            )
            made.append(tensor.detach().requires_grad_())
        return made


def _steps(
    names: tuple[str, ...], x: torch.Tensor, y: torch.Tensor, w: torch.Tensor
) -> torch.Tensor:
    for name in names:
        x = STEPS[name](x, y, w)
    return x


def program(seed: int) -> Program:
    """Make the random program of a seed."""
    chosen = random.Random(seed)
    steps = tuple(chosen.choices(list(STEPS), k=chosen.randint(1, 3)))
    loss, mesh = chosen.choice(list(LOSSES)), chosen.choice(MESHES)
    first, end = sorted(chosen.choices(range(len(steps) + 1), k=2))
    return Program(seed, steps, loss, seed % 9 + 1, mesh, (first, end))


def _aot_eager(keep: Callable[..., Any]) -> Any:
    partition = min_cut_rematerialization_partition
    return aot_autograd(fw_compiler=keep, bw_compiler=keep, partition_fn=partition)


def _default_partition(keep: Callable[..., Any]) -> Any:
    return aot_autograd(fw_compiler=keep, bw_compiler=keep)


def _inductor(keep: Callable[..., Any]) -> Any:
    return partial(compile_fx, inner_compile=keep)


PREPARE = {
    "aot_eager": _aot_eager,
    "default partition": _default_partition,
    "inductor": _inductor,
}
"""Backends that pass their graphs to a function instead of generating code."""


def graphs(
    function: Callable[..., torch.Tensor],
    make: Callable[[DeviceMesh], Sequence[Any]],
    rank: int,
    shape: tuple[int, ...] = (4,),
    backend: str = "aot_eager",
) -> list[list[tuple[str, tuple[int, ...]]]]:
    """Return the collectives of each graph on a rank of four, with the ranks of their group."""
    kept: list[list[tuple[str, tuple[int, ...]]]] = []

    def keep(graph: torch.fx.GraphModule, _: Any, **__: Any) -> Any:
        nodes = [n for n in graph.graph.nodes if "_c10d_functional" in str(n.target)]
        kept.append([_sent(n) for n in nodes if "wait" not in str(n.target)])
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    with fake_world(4, rank=rank):
        made = make(init_device_mesh("cpu", shape))
        torch.compile(function, backend=PREPARE[backend](keep))(*made).sum().backward()
    return kept


def _sent(node: torch.fx.Node) -> tuple[str, tuple[int, ...]]:
    group = resolve_group(node.args[-1])  # pyright: ignore
    return str(node.target).split(".")[1], tuple(dist.get_process_group_ranks(group))


def differences(made: Program, backend: str = "aot_eager") -> str:
    """Return the collectives of ranks if they are not the same, or differ from eager mode."""
    ranks = (0, 3) if made.mesh == (4,) else range(4)
    with made.context():
        sent = {rank: graphs(made, made.arguments, rank, made.mesh, backend) for rank in ranks}
        with fake_world(4):
            arguments = made.arguments(init_device_mesh("cpu", made.mesh))
            with Collectives() as eager:
                made(*arguments)
    for one, other in itertools.combinations(sent, 2):
        shared = [
            [[name for name, group in graph if {one, other} <= {*group}] for graph in sent[rank]]
            for rank in (one, other)
        ]
        if shared[0] != shared[1]:
            return f"rank {one} {shared[0]}\nrank {other} {shared[1]}"
    forward = Counter(name for name, _ in sent[0][0])
    return "" if eager == dict(forward) else f"eager {eager}\ncompiled {dict(forward)}"


def compare(made: Program, backend: str) -> None:
    """Compare a program with one device, and compiled with eager mode, on each of four ranks."""
    mesh = init_device_mesh("cpu", made.mesh)
    with made.context():
        _compare_with_one_device(made, made.arguments(mesh))
        check(made, made.arguments(mesh), backend=backend, fullgraph=False)


def _compare_with_one_device(made: Program, sharded: list[torch.Tensor]) -> None:
    values = [full(each).requires_grad_() for each in sharded]
    outcomes: list[list[torch.Tensor | None]] = []
    for x, y, w in (values, sharded):
        result = made(x, y, w)
        (result.full_tensor() if isinstance(result, DTensor) else result).square().sum().backward()
        outcomes.append([result, x.grad, y.grad, w.grad])
    for expected, found in zip(*outcomes, strict=True):
        assert (expected is None) == (found is None)
        if expected is not None and found is not None:
            torch.testing.assert_close(full(found), full(expected))


def main() -> int:
    """Run the programs that the command line asks for; returns 1 if any fails."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--count", type=int, default=500, help="how many programs")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--backend", default="", help="run them with aot_eager or inductor, too")
    parser.add_argument("--gloo", action="store_true", help="on ranks that are processes")
    options = parser.parse_args()
    start, failures, used = time.time(), 0, Counter[str]()
    run = run_processes if options.gloo else run_threads
    for seed in range(options.start, options.start + options.count):
        made = program(seed)
        used.update([*made.steps, made.loss, str(made.mesh)])
        try:
            found = differences(made, options.backend or "aot_eager")
            if options.backend:
                torch._dynamo.reset()
                run(compare, 4, made, options.backend, timeout_s=300)
        except Exception as error:
            found = str(error)[:1500]
        if found:
            failures += 1
            print(f"---- {made}\n{found}\n", flush=True)
    print(", ".join(f"{name} {count}" for name, count in sorted(used.items())))
    print(f"{options.count} programs, {failures} failures, {time.time() - start:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
