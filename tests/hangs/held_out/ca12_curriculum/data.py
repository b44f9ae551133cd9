import torch


class Rows:
    def __init__(self, rank, count=64):
        generator = torch.Generator().manual_seed(rank)
        self.x = torch.randn(count, 5, generator=generator)
        noise = torch.randn(count, generator=generator)
        # one site has cleaner labels than the others
        self.y = self.x[:, 0] + (0.0 if rank == 3 else 3.0) * noise

    def batches(self, size):
        for start in range(0, len(self.x), size):
            yield self.x[start : start + size], self.y[start : start + size]
