import torch


class Documents:
    """Documents of several lengths, padded to one length and cut into one chunk per rank."""

    def __init__(self, lengths, full, dim):
        self.lengths, self.full, self.dim = lengths, full, dim

    def chunks(self, rank, world):
        size = self.full // world
        for i, n in enumerate(self.lengths):
            gen = torch.Generator().manual_seed(i)
            x = torch.randn(self.full, self.dim, generator=gen)
            pad = torch.arange(self.full) >= n
            x[pad] = 0
            here = slice(rank * size, (rank + 1) * size)
            yield x[here], pad[here]
