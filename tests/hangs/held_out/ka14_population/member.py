import random

import torch
from torch import nn


class Member:
    """An agent of the population with its hyperparameters."""

    def __init__(self, rank):
        self.rng = random.Random(7 + rank)
        torch.manual_seed(rank)
        self.net = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1))
        self.rate = 10 ** self.rng.uniform(-3, -2)
        self.generator = torch.Generator().manual_seed(90 + rank)

    def train(self, steps=15):
        optimizer = torch.optim.SGD(self.net.parameters(), lr=self.rate)
        for _ in range(steps):
            x = torch.randn(32, 6, generator=self.generator)
            loss = nn.functional.mse_loss(self.net(x), x.prod(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def play(self, games):
        """Share of the games won against the fixed opponents of a season."""
        return sum(games) / len(games)

    def mutate(self):
        self.rate *= self.rng.choice([0.8, 1.25])
