import random

import torch
from torch import nn


class ClientSampler:
    """Picks the clients of a round. Some rounds take all clients, others leave one out."""

    def __init__(self, world, seed, full_probability=0.7):
        self.world = world
        self.rng = random.Random(seed)
        self.full_probability = full_probability

    def pick(self):
        clients = list(range(self.world))
        if self.rng.random() > self.full_probability:
            clients.remove(self.rng.choice(clients))
        return clients


class Client:
    def __init__(self, rank, local_steps=4):
        g = torch.Generator().manual_seed(50 + rank)
        n = 40 + 8 * rank
        self.x = torch.randn(n, 6, generator=g)
        self.y = (self.x.sum(1, keepdim=True) + 0.1 * torch.randn(n, 1, generator=g))
        self.local_steps = local_steps
        self.model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))

    def load(self, flat):
        nn.utils.vector_to_parameters(flat, self.model.parameters())

    def train(self):
        opt = torch.optim.SGD(self.model.parameters(), lr=0.01)
        for _ in range(self.local_steps):
            loss = nn.functional.mse_loss(self.model(self.x), self.y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        return nn.utils.parameters_to_vector(self.model.parameters()).detach()
