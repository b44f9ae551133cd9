"""A language model whose ranks communicate by hand, with declared layouts, and faults in it.

    vp      the embedding and the head are sharded by vocabulary, and so is the cross entropy
    cp      ranks have parts of the sequence: a convolution with halos, attention over blocks
    ep      ranks have parts of the batch and half of the experts: tokens travel to them and back
    fsdp    ranks have parts of the batch and of the parameters, which they gather

Each fault is a name that the program looks up where it goes wrong.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import commtrace
from commtrace.analyze import Frames
from dtensor_core import Replicate, Shard
from dtensor_core.testing import kept_mesh
from tests.values.by_hand import NUM_RANKS, Copy, Faults, part, reduced
from tests.values.programs import run_of

WIDTH, VOCABULARY, LENGTH, BATCH, NUM_EXPERTS = 6, 12, 6, 4, 2
OF_DATA = {"cp": 1, "ep": 0, "fsdp": 0}
"""Dimension of the data that the ranks of each kind share."""


def _gathered(x: torch.Tensor, dim: int) -> list[torch.Tensor]:
    parts = [torch.empty_like(x) for _ in range(NUM_RANKS)]
    dist.all_gather(parts, x.contiguous())
    return parts


class Gather(torch.autograd.Function):
    """Parts of all ranks, joined; the gradient is summed, and each rank keeps its part."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int, name: str, faults: Faults) -> torch.Tensor:
        ctx.dim, ctx.name, ctx.faults = dim, name, faults
        parts = _gathered(x, dim)
        if f"{name} exchanged" in faults:
            parts = parts[::-1]
        if f"{name} own only" in faults:
            parts = [x] * NUM_RANKS
        return torch.cat(parts, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        gradient = reduced(gradients[0], ctx.faults, f"{ctx.name} backward")
        return part(gradient, ctx.dim), None, None, None


class Sum(torch.autograd.Function):
    """Sum over ranks, whose gradient each rank has."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, name: str, faults: Faults) -> torch.Tensor:
        return reduced(x, faults, name)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None, None


class Exchange(torch.autograd.Function):
    """Rows that are sent to ranks by numbers; their gradients travel back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
        ctx.splits = sent, received
        rows = x.new_empty((sum(received), *x.shape[1:]))
        dist.all_to_all_single(rows, x.contiguous(), received, sent)
        return rows

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        sent, received = ctx.splits
        rows = gradients[0].new_empty((sum(sent), *gradients[0].shape[1:]))
        dist.all_to_all_single(rows, gradients[0].contiguous(), sent, received)
        return rows, None, None


class Part(nn.Module):
    """A module of a kind of program, which knows its faults."""

    def __init__(self, kind: str, faults: Faults) -> None:
        super().__init__()
        self.kind, self.faults = kind, faults

    def weight_of(self, name: str) -> torch.Tensor:
        """Return a parameter of all ranks' parts."""
        weight = getattr(self, name)
        if self.kind != "fsdp":
            return weight
        whole = Gather.apply(weight, 0, f"{type(self).__name__}.{name}", self.faults)
        assert isinstance(whole, torch.Tensor)
        if f"{type(self).__name__}.{name} stale" in self.faults:
            # The copy of the first step is used in all others.
            kept = self.__dict__.setdefault("kept", whole.detach().clone())
            return whole + (kept - whole).detach()
        return whole


class Embedding(Part):
    """Rows of a table; a rank may hold some of them."""

    def __init__(self, kind: str, faults: Faults) -> None:
        super().__init__(kind, faults)
        self.weight = nn.Parameter(torch.randn(VOCABULARY, WIDTH))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return [B, L, D] of tokens [B, L]."""
        weight = self.weight_of("weight")
        if self.kind != "vp":
            return weight[tokens]
        shift = dist.get_rank() * len(weight) + ("embedding off by one" in self.faults)
        elsewhere = (tokens < shift) | (tokens >= shift + len(weight))
        rows = weight[(tokens - shift).masked_fill(elsewhere, 0)]
        if "embedding without a mask" not in self.faults:
            rows = rows.masked_fill(elsewhere[..., None], 0)
        return Sum.apply(rows, "embedding", self.faults)  # type: ignore[no-any-return]


class Convolution(Part):
    """A window of three rows of the sequence."""

    def __init__(self, kind: str, faults: Faults) -> None:
        super().__init__(kind, faults)
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, 3) / 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform [B, L, D]."""
        rows = F.pad(x, (0, 0, 1, 1))
        if self.kind == "cp" and "halo forgotten" not in self.faults:
            whole = F.pad(Gather.apply(x, 1, "halo", self.faults), (0, 0, 1, 1))  # type: ignore[arg-type]
            begin = dist.get_rank() * x.shape[1] + ("halo off by one" in self.faults)
            rows = whole[:, begin : begin + x.shape[1] + 2]
            rows = F.pad(rows, (0, 0, 0, x.shape[1] + 2 - rows.shape[1]))
        return F.conv1d(rows.transpose(1, 2), self.weight_of("weight")).transpose(1, 2)


class Attention(Part):
    """Causal attention over blocks of keys, whose sums are rescaled to a common maximum."""

    def __init__(self, kind: str, faults: Faults) -> None:
        super().__init__(kind, faults)
        self.q, self.k, self.v = (nn.Parameter(torch.randn(WIDTH, WIDTH) / 2) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform [B, L, D]."""
        q, k, v = (x @ self.weight_of(name) for name in "qkv")
        begin = 0
        if self.kind == "cp":
            k, v = (
                Gather.apply(each, 1, name, self.faults)
                for each, name in ((k, "keys"), (v, "values"))
            )
            begin = dist.get_rank() * x.shape[1] * ("mask of the part" not in self.faults)
        most, total, sums = torch.tensor(-1e30), torch.zeros(()), torch.zeros(())
        rows = torch.arange(begin, begin + x.shape[1])[:, None]
        for place, (keys, values) in enumerate(zip(k.chunk(2, 1), v.chunk(2, 1), strict=True)):
            columns = torch.arange(keys.shape[1]) + place * keys.shape[1]
            scores = (q @ keys.transpose(1, 2)).masked_fill(columns > rows, -1e4)
            higher = torch.maximum(most, scores.amax(-1, keepdim=True).detach())
            shrink = (most - higher).exp() if "blocks not rescaled" not in self.faults else 1.0
            weights = (scores - higher).exp()
            total = total * shrink + weights.sum(-1, keepdim=True)
            sums, most = sums * shrink + weights @ values, higher
        return sums / total


class Experts(Part):
    """Each token passes the expert that its router chooses."""

    def __init__(self, kind: str, faults: Faults) -> None:
        super().__init__(kind, faults)
        self.router = nn.Parameter(torch.randn(WIDTH, NUM_EXPERTS))
        self.experts = nn.Parameter(torch.randn(NUM_EXPERTS, WIDTH, WIDTH) / 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform [B, L, D]."""
        flat = x.flatten(0, 1)
        weights, chosen = torch.softmax(flat @ self.weight_of("router"), -1).max(-1)
        order = chosen.argsort(stable=True)
        rows, back = flat[order], order.argsort()
        count = torch.bincount(chosen, minlength=NUM_EXPERTS)
        experts = self.weight_of("experts")
        if self.kind == "ep":
            made = self._elsewhere(rows, experts[0], count)
        else:
            parts = rows.split(count.tolist())
            made = torch.cat([each @ own for each, own in zip(parts, experts, strict=True)])
        made = made[order if "combined in the wrong order" in self.faults else back]
        scaled = made * weights[:, None] if "without weights" not in self.faults else made
        return scaled.view_as(x)

    def _elsewhere(
        self, rows: torch.Tensor, expert: torch.Tensor, count: torch.Tensor
    ) -> torch.Tensor:
        counts = torch.empty_like(count)
        dist.all_to_all_single(counts, count)
        sent, received = count.tolist(), counts.tolist()
        arrived: Any = Exchange.apply(rows, sent, received)
        if "expert sees the first rank" in self.faults:
            arrived = torch.cat([arrived[: received[0]], 0 * arrived[received[0] :]])
        if "expert twice" in self.faults:
            arrived = arrived @ expert
        made: Any = Exchange.apply(arrived @ expert, received, sent)
        return made.roll(1, 0) if "rows off by one" in self.faults else made


class Head(Part):
    """Logits; a rank may have some of them."""

    def __init__(self, kind: str, faults: Faults) -> None:
        super().__init__(kind, faults)
        self.norm = nn.Parameter(torch.rand(WIDTH) + 0.5)
        self.weight = nn.Parameter(torch.randn(VOCABULARY, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [B, L, V] of [B, L, D]."""
        x = F.rms_norm(x, (WIDTH,), self.weight_of("norm"))
        copied: Any = Copy.apply(x, self.faults) if self.kind == "vp" else x
        return copied @ self.weight_of("weight").T


class Loss(Part):
    """Cross entropy, divided by the number of tokens of all ranks."""

    def forward(self, logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return the loss of logits [B, L, V] and targets [B, L]."""
        num = BATCH * LENGTH // (NUM_RANKS if "loss by local tokens" in self.faults else 1)
        if self.kind != "vp":
            loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="sum") / num
            return Sum.apply(loss, "loss", self.faults) if self.kind else loss  # type: ignore[no-any-return]
        most = logits.amax(-1).detach()
        dist.all_reduce(most, dist.ReduceOp.MAX)
        logits = logits - most[..., None]
        shift = dist.get_rank() * logits.shape[-1] + ("target off by one" in self.faults)
        elsewhere = (tokens < shift) | (tokens >= shift + logits.shape[-1])
        index = (tokens - shift).masked_fill(elsewhere, 0)[..., None]
        chosen = logits.gather(-1, index)[..., 0]
        if "target without a mask" not in self.faults:
            chosen = chosen.masked_fill(elsewhere, 0)
        total: Any = Sum.apply(logits.exp().sum(-1), "denominator", self.faults)
        chosen = Sum.apply(chosen, "target", self.faults)
        return (total.log() - chosen).sum() / num


class Model(nn.Module):
    """The layers in sequence, with residuals."""

    def __init__(self, kind: str, faults: Faults) -> None:
        super().__init__()
        self.embedding, self.convolution = Embedding(kind, faults), Convolution(kind, faults)
        self.attention, self.experts = Attention(kind, faults), Experts(kind, faults)
        self.head, self.loss = Head(kind, faults), Loss(kind, faults)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the loss of tokens [B, L]."""
        x = self.embedding(tokens)
        x = x + self.convolution(x)
        x = x + self.attention(x)
        return self.loss(self.head(x + self.experts(x)), tokens)


def sharded_parameters(kind: str, model: Model) -> set[str]:
    """Return the names of the parameters that are sharded along their first dimension."""
    return {
        "vp": {"embedding.weight", "head.weight"},
        "ep": {"experts.experts"},
        "fsdp": {name for name, _ in model.named_parameters()},
    }.get(kind, set())


def _declare(recording: Any, model: Model, kind: str, mesh: Any) -> None:
    of_data: Any = Shard(OF_DATA[kind]) if kind in OF_DATA else Replicate()
    for module in (model.embedding, model.convolution, model.attention, model.experts):
        recording.declare(module, mesh, [of_data])
    recording.declare(model.head, mesh, [Shard(-1) if kind == "vp" else of_data])
    for module in (model.loss, model):
        recording.declare(module, mesh, [Replicate()])
    sharded = sharded_parameters(kind, model)
    for name, each in model.named_parameters():
        recording.declare(each, mesh, [Shard(0) if name in sharded else Replicate()])


def train(kind: str, faults: Faults, num_steps: int, path: Path) -> None:
    """Train the model on a rank, or on a single device if `kind` is empty."""
    torch.manual_seed(0)
    model = Model(kind, faults)
    generator, rank = torch.Generator().manual_seed(1), 0
    if kind:
        rank = dist.get_rank()
        for name in sharded_parameters(kind, model):
            module, _, attribute = name.rpartition(".")
            own = part(getattr(model.get_submodule(module), attribute).detach(), 0)
            setattr(model.get_submodule(module), attribute, nn.Parameter(own))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with commtrace.record(values="module") as recording:
        if kind:
            _declare(recording, model, kind, kept_mesh((NUM_RANKS,), (kind,)))
        for _ in range(num_steps):
            tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=generator)
            model(part(tokens, OF_DATA[kind]) if kind in OF_DATA else tokens).backward()
            if kind in OF_DATA:
                _reduce_gradients(model, kind, faults)
            optimizer.step()
            optimizer.zero_grad()
            recording.step()
    recording.save(path / f"rank{rank}.json")


def _reduce_gradients(model: Model, kind: str, faults: Faults) -> None:
    """Sum the gradients of replicated parameters over ranks."""
    sharded = sharded_parameters(kind, model)
    for name, each in model.named_parameters():
        is_experts = name == "experts.experts" and "experts reduced" in faults
        if each.grad is not None and (name not in sharded or is_experts):
            each.grad = reduced(each.grad, faults, name)


def recorded(kind: str = "", *faults: str, num_steps: int = 2) -> Frames:
    """Train the model on a single device, or on ranks of a kind."""
    program = partial(train, kind, frozenset(faults), num_steps)
    return run_of(program, NUM_RANKS if kind else 0)
