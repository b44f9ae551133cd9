import torch
import torch.nn as nn


class Block(nn.Linear):
    def __init__(self, dim):
        super().__init__(dim, dim, bias=False)


class Residual(nn.Module):
    def __init__(self, dim=12, depth=4):
        super().__init__()
        self.blocks = nn.ModuleList(Block(dim) for _ in range(depth))

    def forward(self, x, gates):
        for block, gate in zip(self.blocks, gates):
            x = x + gate * torch.tanh(block(x))
        return x
