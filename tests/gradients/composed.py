"""A step of data, tensor and sequence parallelism by hand, with faults of their composition.

The faults are mechanisms of the audit of Megatron-LM in issue 7452: code that is right for one kind
of parallelism is wrong between two of them. Ranks of `dp` have parts of the batch [B, L, D], and
ranks of `tp` parts of the sequence outside of the decoder, and of the heads and the vocabulary
inside.
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
from tests.values.programs import run_of

BATCH, LENGTH, WIDTH, HEADS, SIZE, VOCABULARY = 4, 4, 6, 4, 3, 8
NUM_RANKS = 4
Faults = frozenset[str]


class Ranks:
    """The mesh of a rank, or a single device without a mesh."""

    def __init__(self, mesh: Any = None) -> None:
        self.mesh = mesh

    def size(self, axis: str) -> int:
        """Return the number of ranks of an axis."""
        return self.mesh[axis].size() if self.mesh is not None else 1

    def part(self, x: torch.Tensor, axis: str, dim: int) -> torch.Tensor:
        """Return the rank's part of a tensor."""
        if self.mesh is None:
            return x
        return x.chunk(self.size(axis), dim)[self.mesh.get_local_rank(axis)].clone()

    def sum(self, x: torch.Tensor, axis: str) -> torch.Tensor:
        """Return the sum over the ranks of an axis."""
        total = x.clone()
        if self.mesh is not None:
            dist.all_reduce(total, group=self.mesh.get_group(axis))
        return total

    def joined(self, x: torch.Tensor, axis: str, dim: int) -> torch.Tensor:
        """Return the parts of the ranks of an axis, in order."""
        if self.mesh is None:
            return x
        parts = [torch.empty_like(x) for _ in range(self.size(axis))]
        dist.all_gather(parts, x.contiguous(), group=self.mesh.get_group(axis))
        return torch.cat(parts, dim)


class _Moved(torch.autograd.Function):
    """A function of ranks, and another for the gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: Any, backward: Any) -> torch.Tensor:
        ctx.backward_of = backward
        return forward(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return ctx.backward_of(gradients[0].contiguous()), None, None


def moved(x: torch.Tensor, forward: Any, backward: Any) -> torch.Tensor:
    """Return a function of a tensor, whose gradient comes from another function."""
    return _Moved.apply(x, forward, backward)  # type: ignore[no-any-return]


def _same(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


class Piece(nn.Module):
    """A module that knows the ranks and its faults."""

    def __init__(self, ranks: Ranks, faults: Faults) -> None:
        super().__init__()
        self.ranks, self.faults = ranks, faults

    def axis(self, fault: str) -> str:
        """Return the axis of a group, which is the axis of the data in a fault."""
        return "dp" if fault in self.faults else "tp"


class Scatter(Piece):
    """The rank's part of the sequence; gradients are gathered."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [B, L / tp, D] of [B, L, D]."""
        axis = self.axis("scattered over the wrong group")
        of_tp = partial(self.ranks.joined, axis="tp", dim=1)
        return moved(x, partial(self.ranks.part, axis=axis, dim=1), of_tp)


class Decoder(Piece):
    """Heads with a norm of a single weight for all of them, and a sink of each."""

    def __init__(self, ranks: Ranks, faults: Faults) -> None:
        super().__init__(ranks, faults)
        self.up = nn.Parameter(torch.randn(HEADS, WIDTH, SIZE) / 2)
        self.norm = nn.Parameter(torch.rand(SIZE) + 0.5)
        self.sink = nn.Parameter(torch.randn(HEADS))
        self.down = nn.Parameter(torch.randn(HEADS, SIZE, WIDTH) / 2)

    def forward(self, x: torch.Tensor, is_valid: torch.Tensor) -> torch.Tensor:
        """Transform [B, L / tp, D]; `is_valid` is [B, L]."""
        ranks = self.ranks
        axis = self.axis("gathered over the group of the build")
        summed = lambda g: ranks.part(ranks.sum(g, "tp"), "tp", 1)  # noqa: E731
        whole = moved(x, partial(ranks.joined, axis=axis, dim=1), summed)
        heads = torch.einsum("bld,hdk->blhk", whole, self.up)
        heads = F.rms_norm(heads, (SIZE,), self.norm) * torch.sigmoid(self.sink)[:, None]
        y = torch.einsum("blhk,hkd->bld", heads, self.down)
        y = moved(y, summed, partial(ranks.joined, axis="tp", dim=1))
        mask = ranks.part(is_valid, self.axis("mask of the wrong group"), 1)
        return x + y * mask[..., None]


class Gather(Piece):
    """The whole sequence, from which each rank computes the rest: a gradient is split."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [B, L, D] of [B, L / tp, D]."""
        ranks = self.ranks

        def split(gradient: torch.Tensor) -> torch.Tensor:
            if "gradient of a gathered output reduced" in self.faults:
                gradient = ranks.sum(gradient, "tp")
            return ranks.part(gradient, "tp", 1)

        return moved(x, partial(ranks.joined, axis="tp", dim=1), split)


class Head(Piece):
    """Logits of the rank's part of the vocabulary."""

    def __init__(self, ranks: Ranks, faults: Faults) -> None:
        super().__init__(ranks, faults)
        self.weight = nn.Parameter(torch.randn(VOCABULARY, WIDTH) / 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [B, L, V / tp]."""
        return moved(x, _same, partial(self.ranks.sum, axis="tp")) @ self.weight.T


class Loss(Piece):
    """Cross entropy of sharded logits, divided by the number of valid tokens of all ranks."""

    def forward(
        self, logits: torch.Tensor, targets: torch.Tensor, is_valid: torch.Tensor
    ) -> torch.Tensor:
        """Return the mean over the valid tokens [B, L] of all ranks."""
        ranks = self.ranks
        if "gathered logits taken for a shard" in self.faults:
            whole = partial(ranks.joined, axis="tp", dim=-1)
            logits = moved(logits, whole, partial(ranks.part, axis="tp", dim=-1))
        size, place = logits.shape[-1], 0
        if ranks.mesh is not None:
            place = ranks.mesh.get_local_rank("tp") * size
        elsewhere = (targets < place) | (targets >= place + size)
        chosen = logits.gather(-1, (targets - place).masked_fill(elsewhere, 0)[..., None])[..., 0]
        of_tp = partial(ranks.sum, axis="tp")
        chosen = moved(chosen.masked_fill(elsewhere, 0), of_tp, _same)
        total = moved(logits.exp().sum(-1), of_tp, _same)
        losses = (total.log() - chosen) * is_valid
        count = ranks.sum(is_valid.sum(), "dp")
        if "divided by local counts" in self.faults:
            count = is_valid.sum() * ranks.size("dp")
        return moved(losses.sum() / count, partial(ranks.sum, axis="dp"), _same)


class Model(nn.Module):
    """The pieces in order."""

    def __init__(self, ranks: Ranks, faults: Faults) -> None:
        super().__init__()
        self.embedding = nn.Linear(WIDTH, WIDTH)
        self.scatter, self.decoder = Scatter(ranks, faults), Decoder(ranks, faults)
        self.gather, self.head = Gather(ranks, faults), Head(ranks, faults)
        self.loss = Loss(ranks, faults)

    def forward(
        self, x: torch.Tensor, targets: torch.Tensor, is_valid: torch.Tensor
    ) -> torch.Tensor:
        """Return the loss of [B, L, D]."""
        x = self.decoder(self.scatter(self.embedding(x)), is_valid)
        return self.loss(self.head(self.gather(x)), targets, is_valid)


SHARDED = ("decoder.up", "decoder.sink", "decoder.down", "head.weight")
"""Parameters whose first dimension tensor parallel ranks share."""
LAYOUTS = {
    "embedding": [Shard(0), Replicate()],
    "scatter": [Shard(0), Shard(1)],
    "decoder": [Shard(0), Shard(1)],
    "gather": [Shard(0), Replicate()],
    "head": [Shard(0), Shard(-1)],
    "loss": [Replicate(), Replicate()],
    "": [Replicate(), Replicate()],
}


def _reduce(ranks: Ranks, name: str, gradient: torch.Tensor, faults: Faults) -> torch.Tensor:
    if name == "decoder.norm" and "norm of heads not reduced" not in faults:
        gradient = ranks.sum(gradient, "tp")
    return ranks.sum(gradient, "dp")


def _norm(ranks: Ranks, model: nn.Module, faults: Faults) -> torch.Tensor:
    once, shared = torch.zeros(()), torch.zeros(())
    for name, each in model.named_parameters():
        square = each.grad.square().sum()  # type: ignore[union-attr]
        is_sink = name == "decoder.sink" and "sinks left out of the norm" in faults
        if name not in SHARDED:
            once += square
        elif not is_sink or ranks.mesh is None or ranks.mesh.get_local_rank("tp") == 0:
            shared += square
    return (once + ranks.sum(shared, "tp")).sqrt()


def _train(is_parallel: bool, faults: Faults, path: Path) -> None:
    torch.manual_seed(0)
    mesh = kept_mesh((2, 2), ("dp", "tp")) if is_parallel else None
    ranks = Ranks(mesh)
    model = Model(ranks, faults)
    for name in SHARDED:
        module, _, attribute = name.rpartition(".")
        owner = model.get_submodule(module)
        own = ranks.part(getattr(owner, attribute).detach(), "tp", 0)
        setattr(owner, attribute, nn.Parameter(own))
    x, targets = torch.randn(BATCH, LENGTH, WIDTH), torch.randint(VOCABULARY, (BATCH, LENGTH))
    # The ranks of dp have 2 and 7 valid tokens.
    is_valid = (torch.arange(BATCH * LENGTH) % 7 != 3).view(BATCH, LENGTH).float()
    is_valid[:2, 1:] = 0
    own = [ranks.part(each, "dp", 0) for each in (x, targets, is_valid)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with commtrace.record(values="module") as recording:
        if mesh is not None:
            for name, layout in LAYOUTS.items():
                of_gradient = layout if name == "gather" else None
                recording.declare(model.get_submodule(name), mesh, layout, gradient=of_gradient)
            for name, each in model.named_parameters():
                recording.declare(
                    each, mesh, [Replicate(), Shard(0) if name in SHARDED else Replicate()]
                )
        model(*own).backward()
        for name, each in model.named_parameters():
            assert each.grad is not None
            each.grad = _reduce(ranks, name, each.grad, faults)
        nn.utils.clip_grads_with_norm_(model.parameters(), 0.05, _norm(ranks, model, faults))
        optimizer.step()
        recording.step()
    recording.save(path / f"rank{dist.get_rank() if mesh is not None else 0}.json")


def recorded(*faults: str, is_parallel: bool = True) -> Frames:
    """Return a recorded step on four ranks, or on a single device."""
    program = partial(_train, is_parallel, frozenset(faults))
    return run_of(program, NUM_RANKS if is_parallel else 0)
