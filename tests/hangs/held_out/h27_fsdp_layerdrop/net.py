"""Residual network with layer drop."""
import random

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class LayerDropNet(nn.Module):
    def __init__(self, dim=12, depth=4, drop=0.25, seed=16):
        super().__init__()
        self.inp = nn.Linear(dim, dim)
        self.blocks = nn.ModuleList(Block(dim, 2 * dim) for _ in range(depth))
        self.drop = drop
        # the same on all ranks, so that all drop the same layers
        self.rng = random.Random(seed)

    def augment(self, x):
        """Jitter for short sequences, from the same generator."""
        short = (x[:, -4:] == 0).all()
        if short:
            x = x + 0.01 * self.rng.random()
        return x

    def forward(self, x):
        x = self.inp(self.augment(x))
        for block in self.blocks:
            if self.training and self.rng.random() < self.drop:
                continue
            x = block(x)
        return x
