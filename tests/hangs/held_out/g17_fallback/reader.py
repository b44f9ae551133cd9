"""A reader that fails now and then."""
import torch


class BadSample(Exception):
    pass


class Reader:
    def __init__(self, rank):
        self.rank = rank

    def read(self, step):
        if (step + self.rank) % 5 == 3:
            raise BadSample(f"rank {self.rank} step {step}")
        g = torch.Generator().manual_seed(self.rank * 300 + step)
        return torch.randn(9, 6, generator=g)
