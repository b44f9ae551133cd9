import torch
import torch.distributed as dist
import torch.nn as nn


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class Replicated(nn.Module):
    def __init__(self, rows, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, dim) * 0.01)

    def forward(self, ids):
        return self.weight[ids % len(self.weight)]


class RowWise(nn.Module):
    """Each rank has every world-th row; a lookup is the sum of all ranks' parts."""

    def __init__(self, rows, dim):
        super().__init__()
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.rows = rows
        self.weight = nn.Parameter(torch.randn(-(-rows // self.world), dim) * 0.01)

    def forward(self, ids):
        ids = ids % self.rows
        mine = (ids % self.world) == self.rank
        part = self.weight[ids // self.world] * mine[:, None]
        return SumOverRanks.apply(part)


def make_table(rows, dim, shard_above=1000):
    if rows > shard_above:
        return RowWise(rows, dim)
    return Replicated(rows, dim)


class Collection(nn.Module):
    def __init__(self, sizes, dim):
        super().__init__()
        self.names = sorted(sizes)
        self.tables = nn.ModuleDict({name: make_table(sizes[name], dim) for name in self.names})

    def forward(self, ids):
        return torch.cat([self.tables[name](ids[name]) for name in self.names], 1)
