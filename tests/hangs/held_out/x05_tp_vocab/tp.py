import torch
import torch.distributed as dist
import torch.nn as nn


class CopyToTP(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad


class ReduceFromTP(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class VocabParallelEmbedding(nn.Module):
    def __init__(self, vocab, dim, pretrained=0):
        super().__init__()
        rank, world = dist.get_rank(), dist.get_world_size()
        per = vocab // world
        self.lo, self.hi = rank * per, (rank + 1) * per
        self.weight = nn.Parameter(torch.randn(per, dim) * 0.1)
        if self.hi <= pretrained:
            self.weight.requires_grad_(False)

    def forward(self, ids):
        mine = (ids >= self.lo) & (ids < self.hi)
        local = torch.where(mine, ids - self.lo, 0)
        x = nn.functional.embedding(local, self.weight) * mine[..., None]
        return ReduceFromTP.apply(x)


class ParallelMLP(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        part = hidden // dist.get_world_size()
        self.up = nn.Linear(dim, part, bias=False)
        self.down = nn.Linear(part, dim, bias=False)

    def forward(self, x):
        return ReduceFromTP.apply(self.down(torch.relu(self.up(CopyToTP.apply(x)))))
