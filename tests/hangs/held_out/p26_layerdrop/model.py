"""Residual layers that are left out at random while training (stochastic depth)."""
import random

import torch
import torch.nn as nn


class DropLayer(nn.Module):
    def __init__(self, dim, drop, rng):
        super().__init__()
        self.lin = nn.Linear(dim, dim, bias=False)
        self.drop = drop
        self.rng = rng

    def forward(self, x):
        if self.training and self.rng.random() < self.drop:
            return x
        return x + torch.tanh(self.lin(x))


class DeepNet(nn.Module):
    def __init__(self, dim=20, depth=4, drop=0.06, seed=0):
        super().__init__()
        rng = random.Random(seed)
        self.enter = nn.Linear(dim, dim, bias=False)
        self.layers = nn.ModuleList(DropLayer(dim, drop, rng) for _ in range(depth))
        self.leave = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        x = self.enter(x)
        for layer in self.layers:
            x = layer(x)
        return self.leave(x)
