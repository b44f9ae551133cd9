"""A small program whose ranks communicate by hand, with declared layouts, and faults in it.

    tp      column and row parallel layers; the norm and the head are replicated
    sp      the same between ranks that hold parts of the sequence
    dp      ranks have parts of the batch, and reduce gradients

Each fault is a name that the program looks up where it goes wrong.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import commtrace
from commtrace.analyze import Frames
from dtensor_core import Replicate, Shard
from dtensor_core.testing import kept_mesh
from tests.values.programs import run_of

WIDTH, HIDDEN, NUM_RANKS, LENGTH, BATCH = 6, 8, 2, 4, 4
Faults = frozenset[str]


def reduced(x: torch.Tensor, faults: Faults = frozenset(), name: str = "") -> torch.Tensor:
    """Return the sum over ranks, unless a fault of this name changes it."""
    rank, kinds = dist.get_rank(), {each.removeprefix(name + " ") for each in faults}
    if "dropped" in kinds:
        return x
    x = x.bfloat16() if "in bfloat16" in kinds else x.clone()
    if "without a rank" in kinds and rank == 1:
        x = torch.zeros_like(x)
    if "wrong rank" in kinds:
        parts = [torch.empty_like(x) for _ in range(NUM_RANKS)]
        dist.all_gather(parts, x)
        return parts[1 - rank]
    dist.all_reduce(x, dist.ReduceOp.MAX if "maximum" in kinds else dist.ReduceOp.SUM)
    if "doubled" in kinds:
        dist.all_reduce(x)
    return x.float() / (NUM_RANKS if "divided" in kinds else 1)


class Copy(torch.autograd.Function):
    """Input of a column parallel layer: its gradients are summed over ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, faults: Faults) -> torch.Tensor:
        ctx.faults = faults
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return reduced(gradients[0], ctx.faults, "copy"), None


class Reduce(torch.autograd.Function):
    """Output of a row parallel layer, summed over ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, faults: Faults) -> torch.Tensor:
        ctx.faults = faults
        return reduced(x, faults, "reduce")

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0] * (NUM_RANKS if "reduce backward doubled" in ctx.faults else 1), None


class Gather(torch.autograd.Function):
    """Sequence of all ranks, from their parts; gradients are summed and scattered."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, faults: Faults) -> torch.Tensor:
        ctx.faults = faults
        parts = [torch.empty_like(x) for _ in range(NUM_RANKS)]
        dist.all_gather(parts, x.contiguous())
        parts = parts[::-1] if "gather exchanged" in faults else parts
        whole = torch.cat(parts, 1)
        return whole.roll(1, 1) if "gather off by one" in faults else whole

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return part(reduced(gradients[0], ctx.faults, "gather backward"), 1), None


class Scatter(torch.autograd.Function):
    """Part of the sum over ranks; gradients are gathered."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, faults: Faults) -> torch.Tensor:
        total = reduced(x, faults, "scatter")
        return part(total.roll(1, 1) if "scatter off by one" in faults else total, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        parts = [torch.empty_like(gradients[0]) for _ in range(NUM_RANKS)]
        dist.all_gather(parts, gradients[0].contiguous())
        return torch.cat(parts, 1), None


def part(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the part of a rank."""
    return x.chunk(NUM_RANKS, dim)[dist.get_rank()].clone()


class Block(nn.Module):
    """A norm, a column and a row parallel layer and a residual."""

    def __init__(self, kind: str, faults: Faults) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), Down(kind, faults)
        self.bias = nn.Parameter(torch.randn(WIDTH))
        self.kind, self.faults = kind, faults

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform [B, L, D]."""
        return self.down(self.up(self._entered(self.norm(x))).relu(), self.bias) + x

    def _entered(self, x: torch.Tensor) -> torch.Tensor:
        way: Any = {"tp": Copy, "sp": Gather}.get(self.kind)
        return x if way is None else way.apply(x, self.faults)


class Down(nn.Linear):
    """Row parallel layer."""

    def __init__(self, kind: str, faults: Faults) -> None:
        super().__init__(HIDDEN, WIDTH, bias=False)
        self.kind, self.faults = kind, faults

    def forward(self, input: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Return the sum over ranks, with the bias."""
        x, way = super().forward(input), {"tp": Reduce, "sp": Scatter}.get(self.kind)
        if "bias on every rank" in self.faults:
            x, bias = x + bias, torch.zeros_like(bias)
        if "residual before the reduction" in self.faults:
            x = x + input.mean(-1, keepdim=True)
        reduce: Any = way.apply if way is not None else lambda x, _: x
        return reduce(x, self.faults) + bias


class Model(nn.Module):
    """Two linear layers around a block, with a dropout."""

    def __init__(self, kind: str, faults: Faults) -> None:
        super().__init__()
        self.first, self.dropout = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.25)
        self.block, self.head = Block(kind, faults), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform [B, L, D]."""
        return self.head(self.block(self.dropout(self.first(x))))


def _keep_parts(model: Model) -> None:
    for layer, dim in ((model.block.up, 0), (model.block.down, 1)):
        layer.weight = nn.Parameter(part(layer.weight.detach(), dim))
    model.block.up.bias = nn.Parameter(part(model.block.up.bias.detach(), 0))


def _declare(recording: Any, model: Model, kind: str, mesh: Any) -> None:
    block = model.block
    of_input = {"tp": Replicate(), "sp": Shard(1), "dp": Shard(0)}[kind]
    for module in (model, model.first, model.dropout, block, block.norm, block.down, model.head):
        recording.declare(module, mesh, [of_input])
    recording.declare(block.up, mesh, [Shard(0) if kind == "dp" else Shard(-1)])
    for name, each in model.named_parameters():
        dim = {"block.up.weight": 0, "block.up.bias": 0, "block.down.weight": 1}.get(name)
        placement = Replicate() if dim is None or kind == "dp" else Shard(dim)
        recording.declare(each, mesh, [placement])


def train(kind: str, faults: Faults, level: str, num_steps: int, path: Path) -> None:
    """Train the model on a rank, or on a single device if `kind` is empty."""
    torch.manual_seed(0)
    model = Model(kind, faults)
    generator, rank = torch.Generator().manual_seed(1), 0
    if kind:
        rank = dist.get_rank()
        if "initialised per rank" in faults and rank == 1:
            nn.init.normal_(model.head.weight)
        if kind != "dp":
            _keep_parts(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with commtrace.record(values=level) as recording:
        if kind:
            _declare(recording, model, kind, kept_mesh((NUM_RANKS,), (kind,)))
        for step in range(num_steps):
            x = torch.randn(BATCH, LENGTH, WIDTH, generator=generator)
            noise = torch.rand(BATCH, LENGTH, WIDTH, generator=generator)
            if "dropout per rank" in faults:
                noise = torch.rand(noise.shape, generator=generator.manual_seed(rank + 7))
            dim = {"sp": 1, "dp": 0}.get(kind)
            if dim is not None:
                x, noise = part(x, dim), part(noise, dim)
            handle = model.dropout.register_forward_hook(lambda *a, n=noise: a[1][0] * (n > 0.25))
            loss = model(x).square().sum() / (BATCH * LENGTH)
            handle.remove()
            if "loss by local tokens" in faults:
                loss = loss * NUM_RANKS
            loss.backward()
            if kind:
                _reduce_gradients(model, kind, faults)
            if "gradient clipped by the local norm" in faults and rank == 1:
                model.head.weight.grad = model.head.weight.grad * 0.5  # type: ignore[operator]
            before = model.head.weight.detach().clone()
            optimizer.step()
            if "update skipped on a rank" in faults and rank == 1:
                model.head.weight.data.copy_(before)
            if "momentum of a rank stale" in faults and rank == 1 and not step:
                optimizer.state[model.head.weight]["momentum_buffer"].zero_()
            optimizer.zero_grad()
            recording.step()
    recording.save(path / f"rank{rank}.json")


def _reduce_gradients(model: Model, kind: str, faults: Faults) -> None:
    """Reduce the gradients of replicated parameters, where each rank has only its own part's."""
    for name, each in model.named_parameters():
        is_sharded = name.startswith(("block.up", "block.down")) and kind != "dp"
        if kind != "tp" and not is_sharded and each.grad is not None:
            each.grad = reduced(each.grad, faults, name)


def recorded(kind: str = "", *faults: str, level: str = "module", num_steps: int = 2) -> Frames:
    """Train the model on a single device, or on ranks of a kind."""
    program = partial(train, kind, frozenset(faults), level, num_steps)
    return run_of(program, NUM_RANKS if kind else 0)
