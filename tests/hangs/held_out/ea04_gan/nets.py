import torch
from torch import nn


class Generator(nn.Module):
    def __init__(self, z=4, out=6):
        super().__init__()
        self.z = z
        self.net = nn.Sequential(nn.Linear(z, 16), nn.ReLU(), nn.Linear(16, out))

    def sample(self, n):
        return self.net(torch.randn(n, self.z))


class Discriminator(nn.Module):
    def __init__(self, dim=6):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

    def forward(self, x):
        return self.net(x).squeeze(1)
