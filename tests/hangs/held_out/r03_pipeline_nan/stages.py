import torch
from torch import nn

DIM = 16


class Stage(nn.Module):
    def __init__(self, depth=2):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x).tanh()
        return x


def batch_of(step, batch_size=8):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(batch_size, DIM, generator=generator)
    y = x.roll(1, dims=1).clone()
    if step == 4:
        y[3] = float("inf")      # one broken record of the raw data
    return x, y
