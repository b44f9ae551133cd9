import torch


class Blobs:
    """Gaussian blobs; every rank draws its own samples."""

    def __init__(self, rank, batch=12, classes=5):
        self.gen = torch.Generator().manual_seed(500 + rank)
        self.batch = batch
        centers = torch.Generator().manual_seed(1)
        self.centers = torch.randn(classes, 8, generator=centers) * 2

    def __iter__(self):
        while True:
            y = torch.randint(len(self.centers), (self.batch,), generator=self.gen)
            x = self.centers[y] + torch.randn(self.batch, 8, generator=self.gen)
            yield x, y
