import random

from torch import nn


class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.mix = nn.Linear(dim, dim)

    def forward(self, x):
        return x + self.mix(self.norm(x)).tanh()


class Encoder(nn.Module):
    """Some layers are dropped while training (LayerDrop)."""

    def __init__(self, dim=8, depth=4, drop=0.04):
        super().__init__()
        self.layers = nn.ModuleList(Layer(dim) for _ in range(depth))
        self.head = nn.Linear(dim, 1)
        self.drop = drop

    def forward(self, x):
        for layer in self.layers:
            if self.training and random.random() < self.drop:
                continue
            x = layer(x)
        return self.head(x)
