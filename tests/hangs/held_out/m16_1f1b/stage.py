import torch
from torch import nn


class Stage(nn.Module):
    def __init__(self, rank, world, dim=12):
        super().__init__()
        torch.manual_seed(rank)
        self.last = rank == world - 1
        self.net = nn.Linear(dim, 3) if self.last else nn.Sequential(nn.Linear(dim, dim), nn.Tanh())

    def forward(self, x):
        return self.net(x)
