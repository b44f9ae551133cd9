import torch
from torch import nn


class ClassCondition(nn.Module):
    def __init__(self, classes, dim):
        super().__init__()
        self.table = nn.Embedding(classes, dim)
        self.mix = nn.Linear(dim, dim)
        self.unconditional = nn.Parameter(torch.zeros(dim))

    def forward(self, labels, dropped):
        cond = self.unconditional.expand(len(labels), -1)
        if dropped.all():
            return cond
        known = self.mix(self.table(labels))
        return torch.where(dropped[:, None], cond, known)


class Denoiser(nn.Module):
    def __init__(self, size, classes, dim=48):
        super().__init__()
        self.inp = nn.Linear(size, dim)
        self.time = nn.Linear(2, dim)
        self.condition = ClassCondition(classes, dim)
        self.body = nn.Sequential(nn.SiLU(), nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, size))

    def forward(self, noisy, t, labels, dropped):
        clock = torch.stack([torch.sin(3 * t), torch.cos(3 * t)], dim=1)
        hidden = self.inp(noisy) + self.time(clock) + self.condition(labels, dropped)
        return self.body(hidden)
