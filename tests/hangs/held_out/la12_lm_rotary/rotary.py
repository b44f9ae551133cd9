import torch
from torch import nn


class Rotary(nn.Module):
    """Tables of sines and cosines, by length rounded up to a power of two."""

    def __init__(self, dim, base=1000.0):
        super().__init__()
        self.rates = base ** (-torch.arange(0, dim, 2) / dim)

    def tables(self, length):
        size = 1 << (length - 1).bit_length()
        name = f"table_{size}"
        if not hasattr(self, name):
            angles = torch.outer(torch.arange(size), self.rates)
            self.register_buffer(name, torch.stack([angles.cos(), angles.sin()]), persistent=False)
        cos, sin = getattr(self, name)
        return cos[:length], sin[:length]

    def forward(self, x):
        cos, sin = self.tables(x.shape[1])
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.cat([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
