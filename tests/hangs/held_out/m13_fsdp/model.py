import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(self.norm(x))))


class Stack(nn.Module):
    def __init__(self, depth, dim, drop):
        super().__init__()
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))
        self.rates = [drop * i / (depth - 1) for i in range(depth)]
        self.head = nn.Linear(dim, dim)

    def forward(self, x):
        for block, rate in zip(self.blocks, self.rates):
            if self.training and torch.rand(()) < rate:
                continue
            x = x + block(x)
        return self.head(x)
