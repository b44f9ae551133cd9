import torch
import torch.nn as nn


class Encoder(nn.Module):
    def __init__(self, dim=8, width=16, inspect=False):
        super().__init__()
        self.inspect = inspect
        self.a = nn.Linear(dim, width)
        self.b = nn.Linear(width, dim)
        self.seen = 0

    def forward(self, x):
        h = torch.relu(self.a(x))
        if self.inspect and h.abs().max() > 50:
            self.seen += 1
        return self.b(h)


def build(inspect):
    torch.manual_seed(0)
    return Encoder(inspect=inspect)
