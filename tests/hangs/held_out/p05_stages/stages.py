"""A stack of layers cut into one stage per rank."""
import torch
import torch.nn as nn


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.lin = nn.Linear(dim, dim)

    def forward(self, x):
        return x + torch.tanh(self.lin(self.norm(x)))


def make_stage(index, count, dim=24, depth=2):
    torch.manual_seed(40 + index)
    layers = [Layer(dim) for _ in range(depth)]
    if index == count - 1:
        layers.append(nn.Linear(dim, dim))
    return nn.Sequential(*layers)


class Source:
    """Batches of measurements. Sensors now and then give no number."""

    def __init__(self, batch=16, dim=24, broken=(5,)):
        self.generator = torch.Generator().manual_seed(0)
        self.batch = batch
        self.dim = dim
        self.broken = broken

    def __call__(self, step):
        x = torch.randn(self.batch, self.dim, generator=self.generator)
        y = torch.roll(x, 1, dims=1)
        if step in self.broken:
            x[3, 7] = float("nan")
        return x, y
