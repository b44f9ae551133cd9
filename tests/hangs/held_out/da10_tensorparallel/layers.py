import torch
import torch.distributed as dist
from torch import nn


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad


class GatherColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, rank, world):
        ctx.rank, ctx.width = rank, x.shape[-1]
        parts = [torch.empty_like(x) for _ in range(world)]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim=-1)

    @staticmethod
    def backward(ctx, grad):
        at = ctx.rank * ctx.width
        return grad[..., at:at + ctx.width].contiguous(), None, None


class MixBlock(nn.Module):
    """Column-parallel: every rank computes some features of the output."""

    def __init__(self, width, rank, world, seed):
        super().__init__()
        gen = torch.Generator().manual_seed(seed * 100 + rank)
        self.rank, self.world = rank, world
        self.weight = nn.Parameter(torch.randn(width // world, width, generator=gen) / width)

    def forward(self, x):
        part = torch.tanh(x @ self.weight.t())
        return x + GatherColumns.apply(part, self.rank, self.world)


class FeedForward(nn.Module):
    """Column-parallel, then row-parallel."""

    def __init__(self, width, rank, world, seed):
        super().__init__()
        gen = torch.Generator().manual_seed(seed * 100 + 50 + rank)
        hidden = 2 * width // world
        self.up = nn.Parameter(torch.randn(hidden, width, generator=gen) / width)
        self.down = nn.Parameter(torch.randn(width, hidden, generator=gen) / width)

    def forward(self, x):
        h = torch.relu(x @ self.up.t())
        return x + SumOverRanks.apply(h @ self.down.t())
