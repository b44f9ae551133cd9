import torch
import torch.distributed as dist
from torch import nn


@torch.compiler.disable
def total_over_ranks(t):
    t = t.detach().clone()
    dist.all_reduce(t)
    return t


class SharedNorm(nn.Module):
    """Normalises by statistics of all ranks; small batches use the running ones."""

    def __init__(self, dim, momentum=0.1, least=8):
        super().__init__()
        self.least, self.momentum = least, momentum
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("var", torch.ones(dim))

    def forward(self, x):
        if x.shape[0] < self.least:
            return (x - self.mean) / (self.var + 1e-5).sqrt()
        stats = torch.cat([x.sum(0), x.square().sum(0), x.new_tensor([x.shape[0]])])
        stats = total_over_ranks(stats)
        d = x.shape[1]
        mean, sq = stats[:d] / stats[-1], stats[d:2 * d] / stats[-1]
        var = (sq - mean.square()).clamp(min=0)
        self.mean = self.mean.lerp(mean, self.momentum)
        self.var = self.var.lerp(var, self.momentum)
        return (x - mean) / (var + 1e-5).sqrt()
