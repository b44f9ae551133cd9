import torch

BANDS = 4


class Catalog:
    """Tiles of satellite images by rank and pass; cloudy tiles are left out."""

    def __init__(self, rank, count=9):
        self.rank = rank
        self.count = count

    def cloud(self, number, sweep):
        return ((number * 37 + self.rank * 11 + sweep * 5) % 50) / 100 + 0.05 * self.rank * max(0, sweep - 4)

    def clear(self, sweep):
        return [n for n in range(self.count) if self.cloud(n, sweep) < 0.6]

    def read(self, number, sweep):
        generator = torch.Generator().manual_seed(self.rank * 1000 + number * 10 + sweep)
        return torch.rand(BANDS, 64, 64, generator=generator)
