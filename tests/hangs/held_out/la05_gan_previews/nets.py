import torch
from torch import nn

SIDE, NOISE = 12, 16


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(NOISE, 64), nn.ReLU(), nn.Linear(64, SIDE * SIDE), nn.Tanh())

    def forward(self, z):
        return self.net(z).view(-1, SIDE, SIDE)

    @torch.no_grad()
    def preview(self, z, truncation):
        return self(z * truncation)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(SIDE * SIDE, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))

    def forward(self, images):
        return self.net(images.flatten(1)).squeeze(1)
