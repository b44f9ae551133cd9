import torch
import torch.distributed as dist
from torch import nn


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = x.clone()
        dist.all_reduce(out)
        return out

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class SyncNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(d))

    def forward(self, x):
        n = x.shape[0] * dist.get_world_size()
        mean = SumOverRanks.apply(x.sum(0)) / n
        centred = x - mean
        var = SumOverRanks.apply(centred.square().sum(0)) / n
        return centred * (var + 1e-5).rsqrt() * self.scale
