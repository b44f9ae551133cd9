import torch
import torch.distributed as dist
import torch.nn as nn


class SyncNorm(nn.Module):
    """Normalisation by the statistics of all ranks (statistics carry no gradient)."""

    def __init__(self, dim, momentum=0.1):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(dim))
        self.shift = nn.Parameter(torch.zeros(dim))
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("var", torch.ones(dim))
        self.momentum = momentum

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                stats = torch.cat([x.mean(0), x.square().mean(0)])
                parts = [torch.empty_like(stats) for _ in range(dist.get_world_size())]
                dist.all_gather(parts, stats)
                mean, square = torch.stack(parts).mean(0).chunk(2)
                var = (square - mean ** 2).clamp(min=1e-5)
                self.mean.lerp_(mean, self.momentum)
                self.var.lerp_(var, self.momentum)
        else:
            mean, var = self.mean, self.var
        return (x - mean) / (var + 1e-5).sqrt() * self.gain + self.shift


class ResidualBranch(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = SyncNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        return self.mlp(self.norm(x))


class StochasticDepth(nn.Module):
    def __init__(self, branch, drop):
        super().__init__()
        self.branch, self.drop = branch, drop

    def forward(self, x):
        if not self.training:
            return x + (1 - self.drop) * self.branch(x)
        keep = torch.rand(()).item() >= self.drop
        return x + self.branch(x) if keep else x
