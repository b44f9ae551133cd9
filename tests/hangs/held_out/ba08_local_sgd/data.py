import torch


class Buckets:
    """Batches of a limited number of tokens, so their sizes vary."""

    def __init__(self, rank, steps=12):
        self.gen = torch.Generator().manual_seed(rank)
        self.sizes = [8] * steps
        if rank == 2:
            self.sizes[3:6] = [16, 16, 16]

    def epoch(self):
        for size in self.sizes:
            x = torch.randn(size, 10, generator=self.gen)
            yield x, (x[:, :1] * x[:, 1:2]).tanh()
