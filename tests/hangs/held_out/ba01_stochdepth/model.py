"""A small residual MLP with stochastic depth."""
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, dim, drop):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)
        self.drop = drop

    def forward(self, x):
        h = torch.relu(self.up(self.norm(x)))
        return x + self.down(h) / (1.0 - self.drop)


class Net(nn.Module):
    def __init__(self, dim=16, depth=4, classes=5, max_drop=0.2):
        super().__init__()
        self.stem = nn.Linear(8, dim)
        rates = torch.linspace(0.0, max_drop, depth).tolist()
        self.blocks = nn.ModuleList(Block(dim, rate) for rate in rates)
        self.head = nn.Linear(dim, classes)

    def forward(self, x, generator=None):
        x = self.stem(x)
        for block in self.blocks:
            if self.training and block.drop > 0:
                draw = torch.rand((), generator=generator).item()
                if draw < block.drop:
                    continue
            x = block(x)
        return self.head(x)
