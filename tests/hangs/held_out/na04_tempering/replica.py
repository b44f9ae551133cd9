import math
import random

import torch


class Replica:
    """One walker of a replica-exchange simulation at a fixed temperature."""

    def __init__(self, rank, beta, width):
        self.noise = torch.Generator().manual_seed(100 + rank)
        self.coin = random.Random(22)
        self.beta = beta
        self.width = width
        self.x = torch.full((6,), 0.4)
        self.rejected = 0

    def energy(self, x=None):
        x = self.x if x is None else x
        return float((x.square() - 1).square().sum())

    def move(self):
        trial = self.x + self.width * torch.randn(6, generator=self.noise)
        gain = self.beta * (self.energy() - self.energy(trial))
        if gain >= 0 or torch.rand(1, generator=self.noise).item() < math.exp(gain):
            self.x = trial
            self.rejected = 0
        else:
            self.rejected += 1

    def unstick(self, limit=40):
        if self.rejected < limit:
            return
        index = self.coin.randrange(len(self.x))
        self.x = self.x.clone()
        self.x[index] = -self.x[index]
        self.rejected = 0
