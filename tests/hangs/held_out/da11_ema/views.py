import torch


class Views:
    """Two augmented views of the same images."""

    def __init__(self, rank, width=10):
        self.rank = rank
        self.width = width
        self.gen = torch.Generator().manual_seed(77 + rank)
        self.index = 0

    def __iter__(self):
        return self

    def __next__(self):
        base = torch.randn(12, self.width, generator=self.gen)
        weak = base + 0.05 * torch.randn(12, self.width, generator=self.gen)
        gain = torch.rand(12, 1, generator=self.gen) + 0.5
        if self.rank == 2 and self.index == 5:
            gain[4] = float("inf")
        self.index += 1
        return weak, base * gain
